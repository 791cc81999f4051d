#include "transports/http/status.h"
#include <errno.h>
#include <stddef.h>

static const struct {
    int code;
    unsigned status;
} statuses[] = {
    {EINVAL, 400},    {EACCES, 401}, {EPERM, 403},        {ENOENT, 404}, {EOPNOTSUPP, 405},
    {ETIMEDOUT, 408}, {EBUSY, 409},  {EEXIST, 409},       {ESTALE, 410}, {E2BIG, 413},
    {ERANGE, 416},    {EAGAIN, 503}, {EHOSTUNREACH, 502}, {EIO, 500},
};

unsigned ws_http_status(int negative_errno)
{
    if (negative_errno >= 0)
        return 200;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        if (statuses[i].code == -negative_errno)
            return statuses[i].status;
    return 500;
}

int ws_errno_from_http(unsigned status)
{
    if (status >= 200 && status < 300)
        return 0;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        if (statuses[i].status == status)
            return statuses[i].code;
    return status >= 500 ? EIO : EPROTO;
}
