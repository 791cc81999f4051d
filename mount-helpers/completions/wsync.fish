# fish completion for wsync: commands and options come from the command itself.
function __wsync_commands
    wsync help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\)  *\(.*\)/\1\t\2/p'
end
function __wsync_options
    set -l words (commandline -opc)
    wsync help $words[2] 2>/dev/null | sed -n 's/^ *\(-., \)\{0,1\}\(--[a-z-]*\)[^ ]*\( [A-Z:\/._-]*\)\{0,1\}  *\(.*\)/\2\t\4/p'
end
complete -c wsync -n '__fish_is_first_token' -f -a '(__wsync_commands)'
complete -c wsync -n 'not __fish_is_first_token; and string match -q -- "-*" (commandline -ct)' -f -a '(__wsync_options)'
complete -c wsync -n '__fish_seen_subcommand_from doctor' -f -a gpu
complete -c wsync -n '__fish_seen_subcommand_from token' -f -a 'add list remove'
complete -c wsync -n '__fish_seen_subcommand_from model' -f -a 'forget remove'
