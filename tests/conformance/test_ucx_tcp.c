/* The suite over UCX with UCX_TLS=tcp.
 *
 * timeout: 350, takes: 20
 * beside others */
#include "tests/conformance/ucx_cases.h"

int main(void)
{
    return run_ucx_cases("tcp");
}
