/* The calling thread's last error, which wsync_error() shows; shared by the files of the public API. */
#ifndef WS_TRAINER_LAST_ERROR_H
#define WS_TRAINER_LAST_ERROR_H
#include "transports/error.h"

struct ws_error *ws_last_error(void);

#endif
