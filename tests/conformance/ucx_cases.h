/* The suite over ucx, and what only ucx has, with UCX_TLS set to tls: UCX reads it once a process. The program's exit
 * status. Skips with the reason where UCX cannot be used. */
#ifndef WS_TESTS_UCX_CASES_H
#define WS_TESTS_UCX_CASES_H

int run_ucx_cases(const char *tls);

#endif
