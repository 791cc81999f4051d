# bash completion for wsync: commands and options come from the command itself.
_wsync()
{
    local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$(wsync help --list 2>/dev/null) help version" -- "$cur")
    elif [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(wsync help "$command" 2>/dev/null | grep -o -- '--[a-z-]*')" -- "$cur")
    elif [[ $command == doctor ]]; then
        mapfile -t COMPREPLY < <(compgen -W "gpu ucx" -- "$cur")
    elif [[ $command == token ]] && ((COMP_CWORD == 2)); then
        mapfile -t COMPREPLY < <(compgen -W "add list remove" -- "$cur")
    elif [[ $command == model ]] && ((COMP_CWORD == 2)); then
        mapfile -t COMPREPLY < <(compgen -W "forget remove" -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}
complete -o filenames -F _wsync wsync
