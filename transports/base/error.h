/* An error for people: an errno for the caller, a sentence for the reader that says what was being
 * done, to what, why it failed and what can be done. Filled by the function that knows, passed up
 * unchanged or with more context in front. Plain value, no ownership; err may be NULL everywhere. */
#ifndef WS_TRANSPORTS_BASE_ERROR_H
#define WS_TRANSPORTS_BASE_ERROR_H

#define WS_ERROR_TEXT 1024
#define WS_MUST_USE   __attribute__((warn_unused_result))

struct ws_error {
    int code; /* 0, or a positive errno */
    char text[WS_ERROR_TEXT];
};

/* Sets code and text and returns -code, so that `return ws_error_set(err, EINVAL, "...");` reads
 * well. `code` is a positive errno (anything else counts as EIO). The text is cut to WS_ERROR_TEXT
 * and made one printable line of UTF-8, whatever the arguments hold. */
__attribute__((format(printf, 3, 4))) int ws_error_set(struct ws_error *err, int code, const char *format,
                                                       ...);
/* Puts "context: " in front of the text that is there; keeps the code; returns -code. Where err may
 * be NULL the caller returns its own code: this one cannot know it and says -EIO. */
__attribute__((format(printf, 2, 3))) int ws_error_prefix(struct ws_error *err, const char *format, ...);
/* "EBADMSG" for EBADMSG; "E?" for what is unknown. Static storage. */
const char *ws_errno_name(int code);
/* The inverse of ws_errno_name; 0 when the name is unknown. */
int ws_errno_from_name(const char *name);

#ifdef __clang_analyzer__
/* The analyzer looks at one file at a time and would follow paths on which a failure returned 0. */
#define WS_ALWAYS_NEGATIVE_(call)                                                                            \
    __extension__({                                                                                          \
        int negative_ = (call);                                                                              \
        if (negative_ >= 0)                                                                                  \
            __builtin_unreachable();                                                                         \
        negative_;                                                                                           \
    })
#define ws_error_set(...)    WS_ALWAYS_NEGATIVE_((ws_error_set)(__VA_ARGS__))
#define ws_error_prefix(...) WS_ALWAYS_NEGATIVE_((ws_error_prefix)(__VA_ARGS__))
#endif

#endif
