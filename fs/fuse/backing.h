/* Backing: a file that the kernel reads and writes in the daemon's place (FUSE passthrough, Linux 6.9). */
#ifndef WS_FS_FUSE_BACKING_H
#define WS_FS_FUSE_BACKING_H

struct fuse_session;
/* fd: of the file, not by O_PATH; it may be closed afterwards. Its id, above 0, for fuse_file_info; -errno: -EPERM without
 * CAP_SYS_ADMIN, -ELOOP where the file's system is stacked itself. Any thread. */
int ws_backing_open(struct fuse_session *session, int fd);
/* Files that are open with it go on. */
void ws_backing_close(struct fuse_session *session, int id);
/* The same, by the session's descriptor of /dev/fuse. System calls only. */
int ws_backing_open_by(int connection, int fd);
void ws_backing_close_by(int connection, int id);

#endif
