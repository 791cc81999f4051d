#include "transports/http/page/page.h"
#include WS_PAGE_CSP_FILE

extern const unsigned char ws_page[];
extern const uint64_t ws_page_bytes;
__asm__(".section .rodata\n"
        ".balign 8\n"
        ".globl ws_page_bytes\n"
        ".hidden ws_page_bytes\n"
        "ws_page_bytes:\n"
        ".quad 1f - ws_page\n"
        ".globl ws_page\n"
        ".hidden ws_page\n"
        "ws_page:\n"
        ".incbin \"" WS_PAGE_FILE "\"\n"
        "1:\n"
        ".previous\n");

static void keep(void *arg)
{
    (void)arg; /* it is the program's own */
}

void ws_page_serve(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    static const char *const headers[][2] = {
        {"Content-Type", "text/html; charset=utf-8"},
        {"Content-Security-Policy", WS_PAGE_CSP},
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
    };
    (void)self;
    if (!(in->method & WS_HTTP_READ)) {
        ws_http_refuse_method(a, in, WS_HTTP_READ);
        return;
    }
    a->body = ws_http_body(ws_page, ws_page_bytes, keep, NULL);
    for (size_t i = 0; a->body && i < sizeof(headers) / sizeof(headers[0]); i++)
        ws_http_body_header(a->body, headers[i][0], headers[i][1]);
}
