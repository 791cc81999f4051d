/* How a listing travels and lies in archives: views (MODEL@RECIPE) are not among "models" but in a list of their own,
 * "views", since a reader of 0.1.0 refuses a whole listing for a name that it does not know. Everything else in this
 * program sees them among "models". */
#ifndef WS_TRANSPORTS_PROTOCOL_LISTING_H
#define WS_TRANSPORTS_PROTOCOL_LISTING_H
#include <jansson.h>

/* Both change the listing, whose caller alone has it; NULL, and what is no listing, stays as it is. */
void ws_listing_split(json_t *listing);
void ws_listing_join(json_t *listing);

#endif
