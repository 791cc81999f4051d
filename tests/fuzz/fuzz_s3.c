/* What comes from an object store, and what names one, under libFuzzer. The first byte selects: a reply's XML, a
 * refusal, a listing's key, the URL of a place. */
#include "transports/s3/place.h"
#include "transports/s3/refusal.h"
#include "transports/s3/xml.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static void read_keys(const char *text)
{
    char key[64];
    for (const char *at = text, *before = at; ws_s3_xml_next(&at, NULL, "Key", key, sizeof(key)); before = at)
        require(at > before && strlen(key) < sizeof(key));
}

static void read_refusal(char *text, long status)
{
    char region[] = "eu-west-1";
    struct ws_http_reply reply = {.status = status, .text = text, .kept = {NULL, text, text, region}};
    enum ws_s3_refusal kind;
    struct ws_error err = {0};
    const int rc = ws_s3_refusal("https://h", "/p", &reply, &kind, &err);
    require(rc < 0 && err.code == -rc && err.text[0]);
}

/* What is encoded comes back the same. */
static void read_key(char *text)
{
    char *encoded;
    if (!ws_s3_xml_decode_url(text) || !(encoded = ws_s3_encode(text, false)))
        return;
    require(ws_s3_xml_decode_url(encoded) && strcmp(encoded, text) == 0);
    free(encoded);
}

static void read_place(const char *text)
{
    struct ws_s3_place p;
    struct ws_error err = {0};
    if (ws_s3_place_parse(text, &p, &err) < 0) {
        require(err.text[0]);
        return;
    }
    const size_t n = strlen(p.prefix);
    require(p.bucket[0] && !strchr(p.bucket, '/') &&
            (n == 0 || (p.prefix[0] != '/' && p.prefix[n - 1] != '/')));
    char *url = ws_s3_place_url(&p, NULL, "us-east-1");
    require(url && strncmp(url, "https://", 8) == 0);
    free(url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = size > 0 ? malloc(size) : NULL;
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    switch (data[0] % 4) {
    case 0:
        read_keys(text);
        break;
    case 1:
        read_refusal(text, data[0] % 8 < 4 ? 403 : 503);
        break;
    case 2:
        read_key(text);
        break;
    default:
        read_place(text);
    }
    free(text);
    return 0;
}
