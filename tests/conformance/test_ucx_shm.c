/* The suite over UCX with UCX_TLS=posix,sysv,cma,self.
 *
 * timeout: 350, takes: 20
 * beside others */
#include "tests/conformance/ucx_cases.h"

int main(void)
{
    return run_ucx_cases("posix,sysv,cma,self");
}
