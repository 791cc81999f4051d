#include "transports/http/tls.h"
#include "transports/base/secret.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All of it, or none: a part of a list of authorities is another list. */
static int read_file(const char *path, char **out, struct ws_error *err)
{
    size_t n = 0;
    *out = NULL;
    int rc = path ? ws_state_file_read(path, out, &n, err) : 0;
    if (rc == 0 && path && !*out)
        rc = ws_error_set(err, ENOENT, "%s: %s", path, strerror(ENOENT));
    else if (rc == 0 && path && n == 0)
        rc = ws_error_set(err, EINVAL, "%s is empty", path);
    return rc < 0 ? ws_error_prefix(err, "cannot read the TLS file") : 0;
}

/* A file without a certificate would shut every client out. */
static int check_authorities(const char *path, const char *pem, struct ws_error *err)
{
    const gnutls_datum_t text = {(unsigned char *)(uintptr_t)pem, (unsigned)strlen(pem)};
    gnutls_x509_crt_t *list = NULL;
    unsigned n = 0;
    const int rc = gnutls_x509_crt_list_import2(&list, &n, &text, GNUTLS_X509_FMT_PEM, 0);
    if (rc < 0)
        return ws_error_set(err, EINVAL, "%s holds no authorities of clients in PEM: %s", path,
                            gnutls_strerror(rc));
    for (unsigned i = 0; i < n; i++)
        gnutls_x509_crt_deinit(list[i]);
    gnutls_free(list);
    return 0;
}

/* Into secret memory. */
static int read_key(const char *path, char **out, struct ws_error *err)
{
    char *text;
    if (path)
        ws_secret_leave_no_core();
    int rc = read_file(path, &text, err);
    *out = ws_secret_copy(text);
    if (text && !*out)
        rc = ws_error_set(err, ENOMEM, "no memory for the TLS file %s", path);
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
    return rc;
}

int ws_http_tls_read(struct ws_http_tls *tls, const struct ws_http_tls_files *files, struct ws_error *err)
{
    int rc = read_file(files->cert, &tls->cert, err);
    if (rc == 0)
        rc = read_key(files->key, &tls->key, err);
    if (rc == 0)
        rc = read_file(files->client_ca, &tls->client_ca, err);
    if (rc == 0 && (!tls->cert != !tls->key || (tls->client_ca && !tls->cert)))
        rc = ws_error_set(err, EINVAL, "TLS needs both a certificate and a key");
    if (rc == 0 && tls->client_ca)
        rc = check_authorities(files->client_ca, tls->client_ca, err);
    return rc;
}

void ws_http_tls_destroy(struct ws_http_tls *tls)
{
    free(tls->cert);
    ws_secret_free(tls->key);
    free(tls->client_ca);
}

const char *ws_http_tls_lacks(struct MHD_Connection *c, char text[256])
{
    gnutls_typed_vdata_st purpose = {GNUTLS_DT_KEY_PURPOSE_OID,
                                     (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT, 0};
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    gnutls_datum_t why = {0};
    unsigned status = 0, n = 0;

    if (!info || !info->tls_session || !gnutls_certificate_get_peers(info->tls_session, &n) || n == 0)
        return "none was shown";
    const int rc = gnutls_certificate_verify_peers(info->tls_session, &purpose, 1, &status);
    if (rc == GNUTLS_E_SUCCESS && status == 0)
        return NULL;
    if (rc != GNUTLS_E_SUCCESS)
        snprintf(text, 256, "it cannot be verified: %.150s", gnutls_strerror(rc));
    else if (gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &why, 0) ==
             GNUTLS_E_SUCCESS)
        snprintf(text, 256, "%.200s", (const char *)why.data);
    else
        snprintf(text, 256, "it is not trusted");
    gnutls_free(why.data);
    return text;
}
