/* Records that are passed on while they come: piece by piece, by another reader where one stopped, damaged, twice, in turn. */
#include "tests/fixtures/delta_versions.h"
#include "transports/delta/stream.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A record that goes on from delta to delta while it comes: in by a stream's reader, out by another's writer. */
struct passage {
    struct delta_version base, target;
    struct ws_delta *made, *passed;
    unsigned char *stream; /* of the made one */
    size_t n_bytes;
    struct ws_delta_stream_reader *reader;
    struct ws_delta_stream_writer writer;
    unsigned char *out;
    size_t n_out;
};

static int take_new(void *arg, struct ws_delta_record *r)
{
    const int rc = ws_delta_add(arg, r);
    return rc == -EEXIST ? 0 : rc;
}

static struct ws_delta *passed_on(void *arg, uint32_t file, uint32_t block)
{
    (void)file;
    (void)block;
    return arg;
}

static void connect(struct passage *p)
{
    const struct ws_delta_stream_sink sink = {.record = take_new, .grows = passed_on, .arg = p->passed};
    p->reader = ws_delta_stream_reader_new(ws_delta_link(p->made), ws_delta_blocks(p->made), &sink);
    assert_non_null(p->reader);
}

static void begin_passage(struct passage *p)
{
    ssize_t n;
    *p = (struct passage){0};
    delta_first_version(&p->base);
    delta_next_version(&p->target, &p->base, 3, 1);
    p->made = delta_of(&p->base, &p->target, 0);
    assert_int_equal(ws_delta_new(&p->passed, ws_delta_link(p->made), p->target.manifest, NULL), 0);
    const size_t all = ws_delta_stream_bytes(p->made, 0, 1);
    p->stream = malloc(all);
    p->out = malloc(all + 1);
    assert_int_equal(ws_delta_stream_writer_init(&p->writer, p->made, 0, 1), 0);
    while ((n = ws_delta_stream_write(&p->writer, p->stream + p->n_bytes, all - p->n_bytes)) > 0)
        p->n_bytes += (size_t)n;
    assert_int_equal(p->n_bytes, all);
    ws_delta_stream_writer_free(&p->writer);
    assert_int_equal(ws_delta_stream_writer_init(&p->writer, p->passed, 0, 1), 0);
    connect(p);
}

static void end_passage(struct passage *p)
{
    ws_delta_stream_reader_free(p->reader);
    ws_delta_stream_writer_free(&p->writer);
    ws_delta_put(p->passed);
    ws_delta_put(p->made);
    free(p->stream);
    free(p->out);
    delta_free_version(&p->base);
    delta_free_version(&p->target);
}

static int bring(struct passage *p, size_t from, size_t end)
{
    struct ws_error err = {0};
    (void)usleep(10000); /* what comes faster waits for the whole record */
    return ws_delta_stream_read(p->reader, p->stream + from, end - from, &err);
}

/* Sends what is there. */
static ssize_t pass_on(struct passage *p)
{
    ssize_t n;
    while ((n = ws_delta_stream_write(&p->writer, p->out + p->n_out, p->n_bytes + 1 - p->n_out)) > 0)
        p->n_out += (size_t)n;
    return n;
}

static void test_passed_on(void **state)
{
    struct passage p;
    atomic_uint told = 0;
    struct ws_delta_waiter w = {.notify = delta_notified, .arg = &told};
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    (void)state;
    begin_passage(&p);
    const size_t record = ws_delta_next(p.made, &(size_t){0}, 0, 1)->bytes, half = first + record / 2;
    assert_int_equal(bring(&p, 0, first), 0);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(p.n_out, WS_DELTA_HEAD_BYTES); /* of a record that has no data yet not even its head */
    assert_true(ws_delta_wait(p.passed, p.writer.next, 0, 1, &w));
    assert_int_equal(bring(&p, first, half), 0);
    assert_int_equal(told, 1);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(p.n_out, half);
    assert_null(ws_delta_next(p.passed, &(size_t){0}, 0, 1)); /* it is no record of the delta yet */
    w.coming = p.writer.coming;
    w.sent = p.writer.data_at;
    assert_true(ws_delta_wait(p.passed, p.writer.next, 0, 1, &w));
    ws_delta_stream_reader_free(p.reader); /* the connection breaks; the next one begins anew */
    connect(&p);
    assert_int_equal(bring(&p, 0, half - 10), 0);
    assert_int_equal(told, 1);
    assert_int_equal(bring(&p, half - 10, first + record - 1), 0);
    assert_int_equal(told, 2);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(p.n_out, first + record - 1);
    assert_int_equal(bring(&p, first + record - 1, p.n_bytes), 0);
    ws_delta_end(p.passed, WS_DELTA_WHOLE);
    assert_int_equal(pass_on(&p), -1);
    assert_int_equal(p.n_out, p.n_bytes);
    assert_memory_equal(p.out, p.stream, p.n_bytes);
    end_passage(&p);
}

static void test_passed_on_damaged(void **state)
{
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    (void)state;
    for (unsigned given_up = 0; given_up < 2; given_up++) {
        struct passage p;
        begin_passage(&p);
        const size_t record = ws_delta_next(p.made, &(size_t){0}, 0, 1)->bytes;
        p.stream[first] ^= 1;
        assert_int_equal(bring(&p, 0, first), 0);
        assert_int_equal(bring(&p, first, first + record - 1), 0);
        assert_int_equal(pass_on(&p), 0);
        if (given_up) { /* the connection broke, and nobody tries again */
            ws_delta_stream_reader_free(p.reader);
            p.reader = NULL;
            assert_int_equal(pass_on(&p), 0);
            ws_delta_end(p.passed, WS_DELTA_GIVEN_UP);
        } else {
            assert_int_equal(bring(&p, first + record - 1, p.n_bytes), -EBADMSG);
        }
        assert_int_equal(pass_on(&p), -2);
        assert_true(p.n_out < first + record); /* nobody gets it whole */
        end_passage(&p);
    }
}

/* A source that sends one block by two connections at once: one of them is in time, and neither record is lost or kept. */
static void test_passed_on_twice(void **state)
{
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    (void)state;
    for (unsigned first_wins = 0; first_wins < 2; first_wins++) {
        struct passage p;
        begin_passage(&p);
        const size_t record = ws_delta_next(p.made, &(size_t){0}, 0, 1)->bytes;
        struct ws_delta_stream_reader *one = p.reader;
        assert_int_equal(bring(&p, 0, first), 0);
        assert_int_equal(bring(&p, first, first + record / 2), 0);
        assert_int_equal(pass_on(&p), 0);
        connect(&p);
        struct ws_delta_stream_reader *two = p.reader;
        assert_int_equal(bring(&p, 0, first + record / 2), 0);
        p.reader = first_wins ? one : two;
        assert_int_equal(bring(&p, first + record / 2, p.n_bytes), 0);
        ws_delta_end_part(p.passed, 0, 1);
        p.reader = first_wins ? two : one;
        if (first_wins) {
            assert_int_equal(pass_on(&p), -1);
            assert_memory_equal(p.out, p.stream, p.n_bytes);
        }
        assert_int_equal(bring(&p, first + record / 2, first + record), 0);
        if (!first_wins)
            assert_int_equal(pass_on(&p), -2); /* what it was sending is not to be had */
        assert_non_null(ws_delta_next(p.passed, &(size_t){0}, 0, 1));
        ws_delta_stream_reader_free(first_wins ? one : two);
        end_passage(&p);
    }
}

/* A record that waits for its turn behind one that comes is sent once. */
static void test_passed_on_in_turn(void **state)
{
    struct passage p;
    struct ws_delta *got;
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    struct ws_error err = {0};
    (void)state;
    begin_passage(&p);
    size_t at = 0;
    const struct ws_delta_record *one = ws_delta_next(p.made, &at, 0, 1),
                                 *two = ws_delta_next(p.made, &at, 0, 1);
    struct ws_delta_record *copy = ws_delta_record_new(two->bytes);
    memcpy(copy, two, sizeof(*two) + two->bytes);
    assert_int_equal(bring(&p, 0, first), 0);
    assert_int_equal(bring(&p, first, first + one->bytes / 2), 0);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(ws_delta_add(p.passed, copy), 0);
    assert_int_equal(pass_on(&p), 0);
    assert_int_equal(p.n_out, first + one->bytes / 2);
    assert_int_equal(bring(&p, first + one->bytes / 2, p.n_bytes), 0);
    ws_delta_end(p.passed, WS_DELTA_WHOLE);
    assert_int_equal(pass_on(&p), -1);
    assert_int_equal(p.n_out, p.n_bytes);
    assert_int_equal(ws_delta_new(&got, ws_delta_link(p.made), p.target.manifest, NULL), 0);
    struct ws_delta_stream_reader *r =
        ws_delta_stream_reader_new(ws_delta_link(p.made), ws_delta_blocks(p.made),
                                   &(struct ws_delta_stream_sink){.record = delta_take, .arg = got});
    if (ws_delta_stream_read(r, p.out, p.n_out, &err) < 0)
        fail_msg("%s", err.text);
    struct ws_delta_stats f, made;
    ws_delta_stats(got, &f);
    ws_delta_stats(p.made, &made);
    assert_int_equal(f.n_records, made.n_records);
    assert_int_equal(f.bytes, made.bytes);
    ws_delta_stream_reader_free(r);
    ws_delta_put(got);
    end_passage(&p);
}

/* The data of a record is all there a moment before the record has ended: a sender that looks in between goes on to the next one. */
static void test_passed_on_while_it_ends(void **state)
{
    struct passage p;
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    struct ws_delta_record head;
    (void)state;
    begin_passage(&p);
    const struct ws_delta_record *one = ws_delta_next(p.made, &(size_t){0}, 0, 1);
    assert_int_equal(bring(&p, 0, first), 0);
    assert_int_equal(bring(&p, first, first + one->bytes / 2), 0);
    assert_int_equal(pass_on(&p), 0);
    head = *one;
    head.block = one->block ? 0 : 1;
    head.bytes = 100;
    struct ws_delta_record *brief = ws_delta_record_new(head.bytes);
    memcpy(brief, &head, sizeof(head));
    memset(brief->data, 0, head.bytes);
    assert_int_equal(ws_delta_add(p.passed, brief), 0);
    struct ws_delta_coming *c = p.writer.coming;
    assert_non_null(c);
    memcpy(c->record->data, one->data, one->bytes);
    const size_t here = atomic_exchange(&c->here, one->bytes);
    const size_t rest = first + one->bytes + WS_DELTA_RECORD_BYTES + head.bytes - p.n_out;
    assert_int_equal(ws_delta_stream_write(&p.writer, p.out + p.n_out, rest), rest);
    assert_memory_equal(p.out + first, one->data, one->bytes);
    assert_int_equal(p.out[first + one->bytes + 20], head.bytes);
    atomic_store(&c->here, here);
    end_passage(&p);
}

/* A source brings wrong bytes of a record, and breaks: the next source, whose bytes are right, brings the whole. */
static void test_passed_on_after_damage(void **state)
{
    const size_t first = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    (void)state;
    for (unsigned sends = 0; sends < 2; sends++) {
        struct passage p;
        begin_passage(&p);
        const size_t record = ws_delta_next(p.made, &(size_t){0}, 0, 1)->bytes, wrong = first + record / 4;
        p.stream[wrong] ^= 1;
        assert_int_equal(bring(&p, 0, first), 0);
        assert_int_equal(bring(&p, first, first + record / 2), 0);
        if (sends)
            assert_int_equal(pass_on(&p), 0);
        ws_delta_stream_reader_free(p.reader);
        p.stream[wrong] ^= 1;
        connect(&p);
        assert_int_equal(bring(&p, 0, wrong - 5), 0);
        assert_int_equal(bring(&p, wrong - 5, p.n_bytes), 0);
        ws_delta_end(p.passed, WS_DELTA_WHOLE);
        assert_int_equal(pass_on(&p), sends ? -2 : -1); /* who was sent wrong bytes asks anew */
        if (!sends)
            assert_memory_equal(p.out, p.stream, p.n_bytes);
        end_passage(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passed_on),
        cmocka_unit_test(test_passed_on_damaged),
        cmocka_unit_test(test_passed_on_twice),
        cmocka_unit_test(test_passed_on_in_turn),
        cmocka_unit_test(test_passed_on_while_it_ends),
        cmocka_unit_test(test_passed_on_after_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
