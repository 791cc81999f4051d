/* Certificate: when one ends, so that whoever looks after it hears of it in time. */
#ifndef WS_TRANSPORTS_HTTP_CERTIFICATE_H
#define WS_TRANSPORTS_HTTP_CERTIFICATE_H
#include <stdint.h>

/* Of the first certificate in PEM, which is the holder's own: seconds since 1970. 0: there is none. Any thread. */
uint64_t ws_certificate_end(const char *pem);
/* The same of a file, read now; NULL is no file. */
uint64_t ws_certificate_file_end(const char *path);

#endif
