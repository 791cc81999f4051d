#include "transports/http/certificate.h"
#include "transports/base/state_file.h"
#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>

uint64_t ws_certificate_end(const char *pem)
{
    const gnutls_datum_t text = {(unsigned char *)(uintptr_t)pem, (unsigned)strlen(pem)};
    gnutls_x509_crt_t c = NULL;
    time_t end = 0;
    if (gnutls_x509_crt_init(&c) < 0)
        return 0;
    if (gnutls_x509_crt_import(c, &text, GNUTLS_X509_FMT_PEM) == 0)
        end = gnutls_x509_crt_get_expiration_time(c);
    gnutls_x509_crt_deinit(c);
    return end > 0 ? (uint64_t)end : 0;
}

uint64_t ws_certificate_file_end(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    const int rc = path ? ws_state_file_read(path, &text, &n, NULL) : 0;
    const uint64_t end = rc == 0 && text ? ws_certificate_end(text) : 0;
    if (text)
        explicit_bzero(text, n); /* the file may hold the key, too */
    free(text);
    return end;
}
