#include "fs/engines/external.h"

const struct ws_engine_ops ws_external_ops = {.kind = "external", .external = true};
