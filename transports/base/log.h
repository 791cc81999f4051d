/* One line a message on stderr: "<level> <component> <message key=value ...>". systemd's journal
 * adds time and unit. Nothing is logged per block. Thread safe: one write(2) a line. */
#ifndef WS_TRANSPORTS_BASE_LOG_H
#define WS_TRANSPORTS_BASE_LOG_H

enum ws_log_level { WS_LOG_ERROR, WS_LOG_WARN, WS_LOG_INFO, WS_LOG_DEBUG };

/* Lines below this level are dropped; INFO by default, WSYNC_LOG=error|warn|info|debug overrides. */
void ws_log_set_level(enum ws_log_level level);
__attribute__((format(printf, 3, 4))) void ws_log(enum ws_log_level level, const char *component,
                                                  const char *format, ...);
/* Logs the message once per process and call site (for fallbacks that are said once). */
#define ws_log_once(level, component, ...)                                                                   \
    do {                                                                                                     \
        static int said_;                                                                                    \
        if (!__atomic_exchange_n(&said_, 1, __ATOMIC_RELAXED))                                               \
            ws_log(level, component, __VA_ARGS__);                                                           \
    } while (0)

#endif
