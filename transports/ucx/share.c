#include "transports/ucx/share.h"

unsigned ws_ucx_share(unsigned most, unsigned others)
{
    const unsigned share = others ? most / (others + 1) : most - most / 8;
    return share ? share : 1;
}
