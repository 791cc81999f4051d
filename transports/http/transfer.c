#include "transports/http/transfer.h"
#include "transports/base/limits.h"
#include "transports/base/secret.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

static bool is_secret; /* set before libcurl is started */

static void start_curl(void)
{
    if (is_secret)
        (void)curl_global_init_mem(CURL_GLOBAL_ALL, ws_secret_alloc, ws_secret_free, ws_secret_resize,
                                   ws_secret_copy, ws_secret_zeroed);
    else
        (void)curl_global_init(CURL_GLOBAL_ALL);
}

void ws_http_hide_curl(void)
{
#ifndef __SANITIZE_ADDRESS__ /* which looks for leaks, and for errors, in malloc's memory */
    is_secret = true;
#endif
}

void ws_http_ensure_curl(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, start_curl);
}

/* --- settings --- */

/* libcurl says of a socket that it did not get that it could not connect. */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct ws_http_transfer *t = arg;
    const int sock = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    (void)purpose;
    if (sock < 0 && (errno == EMFILE || errno == ENFILE))
        t->shortage = errno;
    return sock < 0 ? CURL_SOCKET_BAD : sock;
}

static CURLcode set_tls(CURL *c, const struct ws_http_transfer *t)
{
    CURLcode bad = 0;
    if (t->ca_file)
        bad |= curl_easy_setopt(c, CURLOPT_CAINFO, t->ca_file);
    if (t->ca_file) /* instead of the folder of the system's, too; not every TLS library has one */
        (void)curl_easy_setopt(c, CURLOPT_CAPATH, NULL);
    if (t->cert_file)
        bad |= curl_easy_setopt(c, CURLOPT_SSLCERT, t->cert_file);
    if (t->key_file)
        bad |= curl_easy_setopt(c, CURLOPT_SSLKEY, t->key_file);
    return bad;
}

static CURLcode set_body(CURL *c, const struct ws_http_transfer *t)
{
    CURLcode bad = curl_easy_setopt(c, CURLOPT_POST, 1L);
    bad |= curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->n_body);
    return bad | curl_easy_setopt(c, CURLOPT_POSTFIELDS, t->body);
}

static CURLcode set_method(CURL *c, const char *method)
{
    if (strcmp(method, "HEAD") == 0)
        return curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    return curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method);
}

static CURLcode set_signer(CURL *c, const struct ws_http_signer *signer)
{
    CURLcode bad = curl_easy_setopt(c, CURLOPT_AWS_SIGV4, signer->scope);
    bad |= curl_easy_setopt(c, CURLOPT_USERNAME, signer->key_id);
    return bad | curl_easy_setopt(c, CURLOPT_PASSWORD, signer->secret);
}

int ws_http_set_up(CURL *c, struct ws_http_transfer *t)
{
    const long connect_ms = t->connect_ms ? t->connect_ms : WS_CONNECT_TIMEOUT_MS;
    CURLcode bad = 0;

    if (is_secret && strncasecmp(t->url, "https:", 6) == 0)
        ws_secret_leave_no_core();
    if (t->why)
        t->why[0] = 0;
    bad |= curl_easy_setopt(c, CURLOPT_URL, t->url);
    bad |= curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->why);
    bad |= curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    bad |= curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    bad |= curl_easy_setopt(c, CURLOPT_NOPROXY, "*"); /* the peer is a host of the same network */
    bad |= curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    bad |= curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
    bad |= curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, connect_ms);
    bad |= curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)t->timeout_ms);
    bad |= curl_easy_setopt(c, CURLOPT_USERAGENT, t->agent);
    bad |= curl_easy_setopt(c, CURLOPT_HTTPHEADER, t->headers);
    bad |= curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    bad |= curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, t);
    bad |= set_tls(c, t);
    if (t->body)
        bad |= set_body(c, t);
    if (t->method)
        bad |= set_method(c, t->method);
    if (t->signer)
        bad |= set_signer(c, t->signer);
    return bad ? -ENOMEM : 0;
}

int ws_http_add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);

    if (!longer)
        return -ENOMEM;
    *list = longer;
    return 0;
}

int ws_http_add_bearer(struct curl_slist **list, const char *token)
{
    const size_t n = strlen(token) + 32;
    char *line = ws_secret_alloc(n);
    int rc;

    if (!line)
        return -ENOMEM;
    snprintf(line, n, "Authorization: Bearer %s", token);
    rc = ws_http_add_header(list, line);
    ws_secret_free(line);
    return rc;
}

void ws_http_free_headers(struct curl_slist *list)
{
    for (const struct curl_slist *h = list; h; h = h->next)
        explicit_bzero(h->data, strlen(h->data));
    curl_slist_free_all(list);
}

/* --- errors --- */

int ws_http_errno_from_curl(CURLcode code)
{
    switch (code) {
    case CURLE_OK:
        return 0;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
        return EHOSTUNREACH;
    case CURLE_OPERATION_TIMEDOUT:
        return ETIMEDOUT;
    case CURLE_ABORTED_BY_CALLBACK:
        return ECANCELED;
    case CURLE_OUT_OF_MEMORY:
        return ENOMEM;
    case CURLE_URL_MALFORMAT:
        return EINVAL;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
        return EACCES;
    case CURLE_UNSUPPORTED_PROTOCOL: /* of the reply: the URL's is checked before */
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_BAD_CONTENT_ENCODING:
    case CURLE_WRITE_ERROR:
    case CURLE_FILESIZE_EXCEEDED:
        return EPROTO;
    default:
        return ECONNRESET;
    }
}

const char *ws_http_why(const struct ws_http_transfer *t, CURLcode code)
{
    if (code == CURLE_COULDNT_CONNECT && t->shortage == EMFILE)
        return "this process is out of file descriptors: raise LimitNOFILE=, ulimit -n";
    if (code == CURLE_COULDNT_CONNECT && t->shortage == ENFILE)
        return "this machine is out of file descriptors: raise fs.file-max";
    return t->why && t->why[0] ? t->why : curl_easy_strerror(code);
}

/* --- text --- */

size_t ws_http_receive_text(char *bytes, size_t one, size_t n, void *arg)
{
    struct ws_http_text *t = arg;

    (void)one; /* always 1 */
    if (n > t->limit - t->bytes.len) {
        t->is_too_big = true;
        return 0;
    }
    if (ws_bytes_reserve(&t->bytes, n + 1) < 0) {
        t->lacks_memory = true;
        return 0;
    }
    memcpy(t->bytes.ptr + t->bytes.len, bytes, n);
    t->bytes.len += n;
    t->bytes.ptr[t->bytes.len] = '\0';
    return n;
}
