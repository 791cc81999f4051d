/* Metrics: the mount's figures in Prometheus' text format. */
#ifndef WS_FS_METRICS_H
#define WS_FS_METRICS_H
#include "fs/desk.h"

void ws_metrics_print(struct ws_control *c, FILE *f);

#endif
