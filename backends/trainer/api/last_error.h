/* The calling thread's last error, which wsync_error() shows; shared by the files of the public API. */
#ifndef WS_TRAINER_API_LAST_ERROR_H
#define WS_TRAINER_API_LAST_ERROR_H
#include "transports/base/error.h"

struct ws_error *ws_last_error(void);

#endif
