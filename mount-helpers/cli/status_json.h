/* Status_json: what the status and engines files of a mount say, as JSON whose keys and types are always the
 * same:
 *   mount   {"mountpoint", "reads": text, "cache_bytes", "used_bytes", "waiting_bytes", "moved_bytes",
 * "pulls", "pulls_failed", "retries", "bad_blocks": integers, "sources": [{"url": text, "up": bool,
 * "transport": text, "contact": seconds, "error": text or null}]} model   {"model", "commit", "policy": text,
 * "current", "latest", "previous": a version's name or null, "strategy": [text], "switching": bool,
 * "switches", "switches_failed": integers, "lacking": text or null, "engines": [{"name", "state", "serving",
 * "kind": text, "url": text or null, "pause": seconds, "draft", "error": text or null}], "versions":
 * [{"name", "state": text, "bytes", "have", "moved": integers, "how": text, "strategy", "why_not": text or
 * null, "seconds": number, "run": text, "pinned", "at_source": bool, "sources", "bad_blocks": integers,
 * "error": text or null}]} What a file does not say is null, 0, false or an empty list. What a newer mount
 * says beyond this is text under its own key. */
#ifndef WS_MOUNT_HELPERS_CLI_STATUS_JSON_H
#define WS_MOUNT_HELPERS_CLI_STATUS_JSON_H
#include <jansson.h>

json_t *status_json_mount(const char *status);
json_t *status_json_model(const char *model, const char *status, const char *engines);

#endif
