/* Redact: text that leaves this machine, without its secrets. Removed are: what is known to be secret, wherever it
 * stands; private keys in PEM; user info and queries of URLs; what follows Bearer, and Basic behind Authorization; and values of
 * names that end in token, secret, password, passwd, credential(s) or key, as name=value, name: value, JSON or --name value: a word,
 * what is between quotes, or where the name is the first on its line all of the line. Names of files stay
 * (token-file=/etc/...). Takes time in proportion to the text. */
#ifndef WS_MOUNT_HELPERS_CLI_REDACT_H
#define WS_MOUNT_HELPERS_CLI_REDACT_H
#include <stddef.h>

#define REDACT_LEAST_CHARS 6 /* of a known secret: what is shorter would take words out of the text */

struct redact;
struct redact *redact_new(void); /* exits with a sentence where there is no memory, as all of these do */
/* From now on that text is secret. What is too short is left out. Copied. */
void redact_know(struct redact *r, const char *secret);
/* The first line of a file is secret; a file that cannot be read has none to tell. */
void redact_know_file(struct redact *r, const char *path);
/* Values of the environment are, where their names end as above. */
void redact_know_environment(struct redact *r);
/* The text without them, malloc'ed; never more than 16 characters longer for each secret. */
char *redact_text(const struct redact *r, const char *text);
void redact_free(struct redact *r); /* wipes what is known */

#endif
