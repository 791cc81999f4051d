#include "transports/http/tls.h"
#include "transports/base/clock.h"
#include "transports/base/entry.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include "transports/base/state_file.h"
#include "transports/http/certificate.h"
#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <limits.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS WS_SECOND_NS /* between looks whether the files have changed */
#define N_FILES 3

struct ws_http_credentials {
    unsigned users; /* connections, and the tls itself; guarded by its lock */
    gnutls_certificate_credentials_t c;
    uint64_t end; /* of the certificate, seconds since 1970 */
};

struct ws_http_tls {
    char *path[N_FILES];      /* cert, key, client_ca; NULL: none */
    char *cert_pem, *key_pem; /* of the first reading */
    pthread_mutex_t lock;
    /* guarded by lock */
    struct ws_http_credentials *current;
    struct ws_stamp stamp[N_FILES]; /* of what was read, or refused, last */
    uint64_t looked_ns;
};

/* --- files --- */

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

static void wipe(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

static gnutls_datum_t datum(char *text)
{
    return (gnutls_datum_t){(unsigned char *)text, (unsigned)strlen(text)};
}

/* A file without a certificate would shut every client out. */
static int trust(gnutls_certificate_credentials_t c, const char *path, char *pem, struct ws_error *err)
{
    const gnutls_datum_t text = datum(pem);
    const int n = gnutls_certificate_set_x509_trust_mem(c, &text, GNUTLS_X509_FMT_PEM);
    return n > 0 ? 0
                 : ws_error_set(err, EINVAL, "%s holds no authorities of clients in PEM: %s", path,
                                n < 0 ? gnutls_strerror(n) : "it has no certificate");
}

/* GnuTLS itself would find that they do not match, and leak what it had read. */
static int match(const gnutls_datum_t *cert, const gnutls_datum_t *key)
{
    unsigned char ids[2][64];
    size_t n[2] = {sizeof(ids[0]), sizeof(ids[1])};
    gnutls_x509_crt_t c = NULL;
    gnutls_x509_privkey_t k = NULL;
    int rc = gnutls_x509_crt_init(&c);
    if (rc == 0)
        rc = gnutls_x509_privkey_init(&k);
    if (rc == 0)
        rc = gnutls_x509_crt_import(c, cert, GNUTLS_X509_FMT_PEM);
    if (rc == 0)
        rc = gnutls_x509_privkey_import2(k, key, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (rc == 0)
        rc = gnutls_x509_crt_get_key_id(c, GNUTLS_KEYID_USE_SHA256, ids[0], &n[0]);
    if (rc == 0)
        rc = gnutls_x509_privkey_get_key_id(k, GNUTLS_KEYID_USE_SHA256, ids[1], &n[1]);
    if (rc == 0 && (n[0] != n[1] || memcmp(ids[0], ids[1], n[0]) != 0))
        rc = GNUTLS_E_CERTIFICATE_KEY_MISMATCH;
    if (k)
        gnutls_x509_privkey_deinit(k);
    if (c)
        gnutls_x509_crt_deinit(c);
    return rc;
}

static int make(gnutls_certificate_credentials_t c, const struct ws_http_tls *tls, char *const pem[N_FILES],
                struct ws_error *err)
{
    const gnutls_datum_t cert = datum(pem[0]), key = datum(pem[1]);
    int rc = match(&cert, &key);
    if (rc == 0)
        rc = gnutls_certificate_set_x509_key_mem(c, &cert, &key, GNUTLS_X509_FMT_PEM);
    if (rc < 0)
        return ws_error_set(err, EINVAL, "%s and %s are no certificate with its key in PEM: %s", tls->path[0],
                            tls->path[1], gnutls_strerror(rc));
    return pem[2] ? trust(c, tls->path[2], pem[2], err) : 0;
}

/* first: keeps the texts. */
static int read_credentials(struct ws_http_tls *tls, bool first, struct ws_http_credentials **out,
                            struct ws_error *err)
{
    char *pem[N_FILES] = {NULL};
    struct ws_http_credentials *new = calloc(1, sizeof(*new));
    int rc = new &&gnutls_certificate_allocate_credentials(&new->c) == 0
                 ? 0
                 : ws_error_set(err, ENOMEM, "no memory for TLS");
    ws_secret_leave_no_core();
    for (size_t i = 0; rc == 0 && i < N_FILES; i++)
        rc = read_file(tls->path[i], &pem[i], err);
    if (rc == 0)
        rc = make(new->c, tls, pem, err);
    if (rc == 0)
        new->end = ws_certificate_end(pem[0]);
    if (rc == 0 && first) {
        tls->cert_pem = pem[0];
        pem[0] = NULL;
        if (!(tls->key_pem = ws_secret_copy(pem[1])))
            rc = ws_error_set(err, ENOMEM, "no memory for TLS");
    }
    for (size_t i = 0; i < N_FILES; i++)
        wipe(pem[i]);
    if (rc < 0 && new) {
        if (new->c)
            gnutls_certificate_free_credentials(new->c);
        free(new);
    } else if (rc == 0) {
        new->users = 1;
        *out = new;
    }
    return rc;
}

/* False: the files are what they were. */
static bool update_stamps(struct ws_http_tls *tls)
{
    bool changed = false;
    for (size_t i = 0; i < N_FILES; i++) {
        const struct ws_stamp now = tls->path[i] ? ws_stamp_of(tls->path[i]) : (struct ws_stamp){0};
        changed = changed || !ws_stamp_equal(&now, &tls->stamp[i]);
        tls->stamp[i] = now;
    }
    return changed;
}

/* Under lock. */
static void put(struct ws_http_credentials *c)
{
    if (--c->users > 0)
        return;
    gnutls_certificate_free_credentials(c->c);
    free(c);
}

/* Under lock. A certificate without its key yet, as between two writes, leaves what was read before; the next look
 * finds both. */
static void look_again(struct ws_http_tls *tls)
{
    const uint64_t now = ws_clock_ns();
    struct ws_http_credentials *new = NULL;
    struct ws_error err = {0};
    if (now - tls->looked_ns < LOOK_NS)
        return;
    tls->looked_ns = now;
    if (!update_stamps(tls)) /* before reading: what changes meanwhile is seen again */
        return;
    const int rc = read_credentials(tls, false, &new, &err);
    if (rc < 0 && rc != -EINVAL) /* it cannot be read just now: it is tried again at the next look */
        memset(tls->stamp, 0, sizeof(tls->stamp));
    if (rc < 0 || !new) {
        ws_log(WS_LOG_WARN, "http", "the TLS files of before hold on: %s", err.text);
        return;
    }
    put(tls->current);
    tls->current = new;
    ws_log(WS_LOG_INFO, "http", "TLS files read again cert=%s", tls->path[0]);
}

/* --- life --- */

int ws_http_tls_new(struct ws_http_tls **out, const struct ws_http_tls_files *files, struct ws_error *err)
{
    const char *const paths[N_FILES] = {files->cert, files->key, files->client_ca};
    *out = NULL;
    if (!files->cert && !files->key && !files->client_ca)
        return 0;
    if (!files->cert || !files->key)
        return ws_error_set(err, EINVAL, "TLS needs both a certificate and a key");
    struct ws_http_tls *tls = calloc(1, sizeof(*tls));
    if (!tls)
        return ws_error_set(err, ENOMEM, "no memory for TLS");
    pthread_mutex_init(&tls->lock, NULL);
    int rc = 0;
    for (size_t i = 0; i < N_FILES; i++)
        if (paths[i] && !(tls->path[i] = strdup(paths[i])))
            rc = ws_error_set(err, ENOMEM, "no memory for TLS");
    if (rc == 0) {
        (void)update_stamps(tls);
        tls->looked_ns = ws_clock_ns();
        rc = read_credentials(tls, true, &tls->current, err);
    }
    if (rc < 0)
        ws_http_tls_free(tls);
    else
        *out = tls;
    return rc;
}

void ws_http_tls_free(struct ws_http_tls *tls)
{
    if (!tls)
        return;
    if (tls->current)
        put(tls->current);
    for (size_t i = 0; i < N_FILES; i++)
        free(tls->path[i]);
    free(tls->cert_pem);
    ws_secret_free(tls->key_pem);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

bool ws_http_tls_has_client_ca(const struct ws_http_tls *tls)
{
    return tls && tls->path[2];
}

const char *ws_http_tls_first_cert(const struct ws_http_tls *tls)
{
    return tls->cert_pem;
}

const char *ws_http_tls_first_key(const struct ws_http_tls *tls)
{
    return tls->key_pem;
}

uint64_t ws_http_tls_end(struct ws_http_tls *tls)
{
    if (!tls)
        return 0;
    pthread_mutex_lock(&tls->lock);
    look_again(tls);
    const uint64_t end = tls->current->end;
    pthread_mutex_unlock(&tls->lock);
    return end;
}

/* --- connections --- */

static gnutls_session_t session_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    return info ? info->tls_session : NULL;
}

struct ws_http_credentials *ws_http_tls_use(struct ws_http_tls *tls, struct MHD_Connection *c)
{
    gnutls_session_t session = session_of(c);
    if (!session)
        return NULL;
    pthread_mutex_lock(&tls->lock);
    look_again(tls);
    struct ws_http_credentials *now = tls->current;
    now->users++;
    pthread_mutex_unlock(&tls->lock);
    (void)gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, now->c);
    if (ws_http_tls_has_client_ca(tls))
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUEST);
    return now;
}

void ws_http_tls_release(struct ws_http_tls *tls, struct ws_http_credentials *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&tls->lock);
    put(c);
    pthread_mutex_unlock(&tls->lock);
}

/* A name that no line of a tokens file can have, and no log should, is none. */
static void add_name(struct ws_http_names *out, const char *name, size_t n)
{
    if (out->n == WS_HTTP_NAMES || !ws_identity_is_name(name, n))
        return;
    memcpy(out->text[out->n], name, n);
    out->text[out->n][n] = 0;
    out->ptr[out->n] = out->text[out->n];
    out->n++;
}

/* Of a certificate without any other name: sha256: and 64 hex digits, as openssl x509 -fingerprint has them. */
static void name_by_fingerprint(const gnutls_datum_t *der, struct ws_http_names *out)
{
    unsigned char bytes[32];
    size_t n = sizeof(bytes);
    if (gnutls_fingerprint(GNUTLS_DIG_SHA256, der, bytes, &n) < 0)
        return;
    char *at = stpcpy(out->text[0], "sha256:");
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%02x", bytes[i]);
    out->ptr[0] = out->text[0];
    out->n = 1;
}

void ws_http_tls_names(const void *bytes, size_t size, struct ws_http_names *out)
{
    const gnutls_datum_t der = {(unsigned char *)(uintptr_t)bytes, (unsigned)size};
    gnutls_x509_crt_t crt;
    char name[WS_IDENTITY_CHARS + 1];
    *out = (struct ws_http_names){0};
    if (gnutls_x509_crt_init(&crt) < 0)
        return;
    const bool is_one = size <= UINT_MAX && gnutls_x509_crt_import(crt, &der, GNUTLS_X509_FMT_DER) == 0;
    bool more = is_one;
    for (unsigned i = 0; more && i < 64; i++) {
        size_t n = sizeof(name);
        unsigned kind = 0;
        const int rc = gnutls_x509_crt_get_subject_alt_name2(crt, i, name, &n, &kind, NULL);
        more = rc != GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE;
        if (rc >= 0 && (rc == GNUTLS_SAN_DNSNAME || rc == GNUTLS_SAN_URI || rc == GNUTLS_SAN_RFC822NAME))
            add_name(out, name, n);
    }
    size_t n = sizeof(name);
    if (gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, name, &n) == 0)
        add_name(out, name, n);
    gnutls_x509_crt_deinit(crt);
    if (is_one && out->n == 0)
        name_by_fingerprint(&der, out);
}

const char *ws_http_tls_lacks(struct MHD_Connection *c, struct ws_http_names *out, char text[256])
{
    gnutls_typed_vdata_st purpose = {GNUTLS_DT_KEY_PURPOSE_OID,
                                     (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT, 0};
    gnutls_session_t session = session_of(c);
    gnutls_datum_t why = {0};
    unsigned status = 0, n = 0;
    const gnutls_datum_t *chain = session ? gnutls_certificate_get_peers(session, &n) : NULL;

    if (!chain || n == 0)
        return "none was shown";
    const int rc = gnutls_certificate_verify_peers(session, &purpose, 1, &status);
    if (rc == GNUTLS_E_SUCCESS && status == 0) {
        ws_http_tls_names(chain->data, chain->size, out);
        return out->n ? NULL : "it has no name, and no fingerprint";
    }
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
