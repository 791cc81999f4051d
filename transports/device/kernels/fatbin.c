#include "transports/device/kernels/fatbin.h"

#ifdef WS_FATBIN /* the file's name */
__asm__(".section .rodata\n"
        ".balign 16\n"
        ".globl ws_kernels_fatbin\n"
        ".hidden ws_kernels_fatbin\n"
        ".type ws_kernels_fatbin, @object\n"
        "ws_kernels_fatbin:\n"
        ".incbin \"" WS_FATBIN "\"\n"
        ".size ws_kernels_fatbin, . - ws_kernels_fatbin\n"
        "0:\n"
        ".balign 8\n"
        ".globl ws_kernels_fatbin_bytes\n"
        ".hidden ws_kernels_fatbin_bytes\n"
        ".type ws_kernels_fatbin_bytes, @object\n"
        ".size ws_kernels_fatbin_bytes, 8\n"
        "ws_kernels_fatbin_bytes:\n"
        ".quad 0b - ws_kernels_fatbin\n"
        ".previous\n");
_Static_assert(sizeof(size_t) == 8, "as it is written there");
#else
const unsigned char ws_kernels_fatbin[] = {0};
const size_t ws_kernels_fatbin_bytes = 0;
#endif
