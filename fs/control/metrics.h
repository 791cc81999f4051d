/* Metrics: the mount's counters and gauges in Prometheus' text format. */
#ifndef WS_FS_CONTROL_METRICS_H
#define WS_FS_CONTROL_METRICS_H
#include "fs/engines/controller.h"

void ws_metrics_print(struct ws_control *c, FILE *f);

#endif
