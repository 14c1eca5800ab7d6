/* Exchanges messages over a reliable connection, as `ibv_rc_pingpong` does, which may be the peer. Every byte is compared.
 *
 * The program prints its address and reads one line: the peer's address, `client` or `server`, and options. The options are `size=N`
 * (bytes), `iters=N`, `events` (interrupts instead of polling) and `linux` (the peer is `ibv_rc_pingpong -c`).
 *
 * `ibv_rc_pingpong` sends back what it received last. So does the server here; the end that has such a peer makes the bytes. A server
 * whose client is `ibv_rc_pingpong` makes them too: the client begins with bytes of 0x7b. */
#include "failure.h"
#include "machine.h"
#include "node.h"

/* Bytes of a message, at most. */
#define MAX_MESSAGE 65536
/* Nanoseconds that the peer's address, and a message, may take. */
#define ADDRESS_TIMEOUT 120000000000u
#define TIMEOUT 30000000000u
/* Code of an MTU of 1024 bytes, which is that of ibv_rc_pingpong. */
#define MTU_1024 3
/* wr_id of a send. Receives have the number of their place. */
#define SEND 100

struct wanted {
    struct address peer;
    int client, from_linux;
    uint32_t size, iters;
};

static struct node node;
static struct wanted wanted;
/* Messages that came, and sends that did not complete yet. */
static uint32_t received, sending;
/* Receives alternate between two places; what is sent lies in a third. */
static _Alignas(4096) __attribute__((section(".dma"))) uint8_t buffer[3][MAX_MESSAGE];
static _Alignas(4096) __attribute__((section(".dma"))) uint8_t memory[BV_MEMORY_SIZE];

/* Ends the word at the start of a text and returns what comes behind it. */
static char *end_word(char *text)
{
    while (*text != 0 && *text != ' ')
        text++;
    while (*text == ' ')
        *text++ = 0;
    return text;
}

/* Returns what follows a prefix, or NULL. */
static const char *after(const char *text, const char *prefix)
{
    for (; *prefix != 0; prefix++, text++)
        if (*text != *prefix)
            return NULL;
    return text;
}

static int same(const char *text, const char *other)
{
    const char *rest = after(text, other);
    return rest != NULL && *rest == 0;
}

/* Reads a number of up to nine digits. Returns 0 if the text is something else. */
static int parse_number(const char *text, uint32_t *number)
{
    unsigned digits;
    *number = 0;
    for (digits = 0; *text >= '0' && *text <= '9' && digits < 9; digits++, text++)
        *number = *number * 10 + (uint32_t)(*text - '0');
    return digits != 0 && *text == 0;
}

/* Reads the line with the peer's address. Returns 0 if it is something else. */
static int parse(char *line)
{
    char *word = line, *rest = end_word(word);
    const char *number;
    if (!parse_address(word, &wanted.peer))
        return 0;
    word = rest;
    rest = end_word(word);
    wanted.client = same(word, "client");
    if (!wanted.client && !same(word, "server"))
        return 0;
    wanted.size = 4096;
    wanted.iters = 1000;
    for (word = rest; *word != 0; word = rest) {
        rest = end_word(word);
        if ((number = after(word, "size=")) != NULL) {
            if (!parse_number(number, &wanted.size) || wanted.size == 0 || wanted.size > MAX_MESSAGE)
                return 0;
        } else if ((number = after(word, "iters=")) != NULL) {
            if (!parse_number(number, &wanted.iters))
                return 0;
        } else if (same(word, "events")) {
            node.events = 1;
        } else if (same(word, "linux")) {
            wanted.from_linux = 1;
        } else {
            return 0;
        }
    }
    return 1;
}

/* Byte `at` of message `number`. The first byte of each page is 0, which `ibv_rc_pingpong -c` asks for. */
static uint8_t pattern(uint32_t number, uint32_t at)
{
    return at % 4096 == 0 ? 0 : (uint8_t)(((number * 0x9e3779b9u ^ at) * 0x85ebca6bu) >> 24);
}

static void fill(uint8_t *place, uint32_t number)
{
    uint32_t at;
    for (at = 0; at < wanted.size; at++)
        place[at] = pattern(number, at);
}

/* The byte that message `number` must have: of the end that makes them, once they have been there and back. */
static uint8_t expected(uint32_t number, uint32_t at)
{
    if (wanted.client || !wanted.from_linux)
        return pattern(number, at);
    if (number == 0)
        return at % 4096 == 0 ? 0 : 0x7b;
    return pattern(number - 1, at);
}

static void compare(const uint8_t *place, uint32_t number)
{
    uint32_t at;
    for (at = 0; at < wanted.size; at++) {
        if (place[at] == expected(number, at))
            continue;
        print("failed: byte ");
        print_number(at);
        print(" of message ");
        print_number(number);
        print(" is ");
        print_number(place[at]);
        print(" instead of ");
        print_number(expected(number, at));
        print("\n");
        end(1);
    }
}

static void receive(uint32_t place)
{
    bv_sge sge = {(uintptr_t)buffer[place], wanted.size, node.mr.lkey};
    bv_recv_wr wr = {.wr_id = place, .sg_list = &sge, .num_sge = 1};
    check(node.device, "post_recv", bv_post_recv(node.device, node.qp, &wr, 1, NULL));
}

static void send(const uint8_t *place)
{
    bv_sge sge = {(uintptr_t)place, wanted.size, node.mr.lkey};
    bv_send_wr wr = {.wr_id = SEND, .opcode = BV_WR_SEND, .sg_list = &sge, .num_sge = 1};
    sending++;
    check(node.device, "post_send", bv_post_send(node.device, node.qp, &wr, 1, NULL));
}

/* Waits until every send has completed and `messages` messages have come. */
static void wait(uint32_t messages)
{
    while (sending != 0 || received < messages) {
        bv_wc wc = next_completion(&node, TIMEOUT);
        if (wc.wr_id == SEND) {
            require("a send completed that was not posted", sending != 0);
            sending--;
        } else {
            require("a message came at another place, or has another length", wc.wr_id == received % 2 && wc.byte_len == wanted.size);
            received++;
        }
    }
}

/* Exchanges one message there and one back. */
static void turn(uint32_t number)
{
    uint32_t place = number % 2;
    if (wanted.client) {
        fill(buffer[2], number);
        send(buffer[2]);
    }
    wait(number + 1);
    compare(buffer[place], number);
    if (!wanted.client && wanted.from_linux) {
        fill(buffer[2], number);
        send(buffer[2]);
    } else if (!wanted.client) {
        send(buffer[place]);
    }
    /* The place is free once its bytes are sent. */
    wait(number + 1);
    receive(place);
}

void firmware(void)
{
    static char line[200];
    uint32_t number;
    print("pingpong-in-c on riscv64, virt\n");
    find_nodes(&node, 1);
    bring_up(&node, memory, buffer[0], sizeof buffer);
    print("address ");
    print_address(&node.address);
    print("\n");
    require("the peer's address: no line came, or one of more than 199 bytes", read_line(line, sizeof line, ADDRESS_TIMEOUT));
    require("not 'LID:QPN:PSN:GID client|server [size=N] [iters=N] [events] [linux]'", parse(line));
    connect(&node, &wanted.peer, MTU_1024);
    receive(0);
    receive(1);
    print("connected\n");
    for (number = 0; number < wanted.iters; number++)
        turn(number);
    print_number(wanted.iters);
    print(" messages of ");
    print_number(wanted.size);
    print(" bytes there and back, each byte checked\n");
    if (node.events) {
        print_number(node.interrupts);
        print(" interrupts\n");
    }
    take_down(&node);
    done();
}
