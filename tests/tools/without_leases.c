/* without_leases PROGRAM ARGUMENT...: runs it as on a kernel that grants no leases. */
#include "tests/fixtures/without_leases.h"
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    refuse_leases();
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
