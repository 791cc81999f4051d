#include "backends/trainer/api/last_error.h"
#include "backends/trainer/wsync.h"

static _Thread_local struct ws_error last_error;

struct ws_error *ws_last_error(void)
{
    return &last_error;
}

const char *wsync_error(void)
{
    return last_error.text[0] ? last_error.text : "no error";
}
