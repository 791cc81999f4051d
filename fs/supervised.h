/* Supervised: the daemon's side of its supervisor (fs/supervisor.h). One a process; without a supervisor all of this does nothing. */
#ifndef WS_FS_SUPERVISED_H
#define WS_FS_SUPERVISED_H
#include "fs/kept_regions.h"
#include <stdbool.h>

struct ws_word { /* a packet on the channel */
    enum {
        WS_WORD_LIVES,  /* a question, and its answer */
        WS_WORD_IDLE,   /* does no command run? An answer to that: none does */
        WS_WORD_BUSY,   /* ... one still does */
        WS_WORD_READY,  /* the daemon serves */
        WS_WORD_FAILED, /* it does not, says why, and ends */
        WS_WORD_CUT,    /* end the connection */
        WS_WORD_KEEP,   /* with a descriptor, of memory whose label is text */
        WS_WORD_FORGET, /* close what has that label */
    } kind;
    char text[WS_ERROR_TEXT];
};

/* Any thread, and the supervisor. to -1: nobody hears it; fd -1: none goes along. */
void ws_word_send(int to, int kind, const char *text, int fd);

/* This process is a daemon from here on. Owns the channel, and takes over what is on the list. is_next: there was one before it. */
void ws_supervised_begin(int channel, bool is_next, const struct ws_kept_regions *inherited);
int ws_supervised_channel(void); /* -1: it has no supervisor */
void ws_supervised_say(int kind);
/* A next daemon that is not ready ends here, and leaves the mount to its supervisor, who may have more luck with another. Others return. */
void ws_supervised_give_up(const struct ws_error *why);
/* The supervisor keeps memory for the next daemon; NULL: there is none. */
const struct ws_store_keeper *ws_supervised_keeper(void);

#endif
