/* Two cards of one machine without an operating system: each writes into a buffer of the other. The machine is machine.c. */
#include "bareverbs.h"

#include "machine.h"

#define BYTES 16384
/* Nanoseconds that a write may take. */
#define TIMEOUT 10000000000u

struct node {
    bv_device *device;
    bv_port_attr port;
    bv_pd pd;
    bv_cq cq;
    bv_qp qp;
    bv_mr mr;
    uint8_t *buffer;
};

static struct node nodes[2];
static struct card cards[2];
static _Alignas(BV_STORAGE_ALIGN) uint8_t storage[2][BV_STORAGE_SIZE];
/* What the cards use: first half of a buffer is written by the program, the second one by the peer. */
static _Alignas(4096) __attribute__((section(".dma"))) uint8_t memory[2][BV_MEMORY_SIZE];
static _Alignas(4096) __attribute__((section(".dma"))) uint8_t buffers[2][2 * BYTES];

static uint32_t read32(void *context, size_t offset)
{
    return *(volatile uint32_t *)(((struct card *)context)->bar + offset);
}

static void write32(void *context, size_t offset, uint32_t value)
{
    *(volatile uint32_t *)(((struct card *)context)->bar + offset) = value;
}

static void write64(void *context, size_t offset, uint64_t value)
{
    *(volatile uint64_t *)(((struct card *)context)->bar + offset) = value;
}

static uint64_t now(void *context)
{
    (void)context;
    return nanoseconds();
}

static int32_t page_alloc(void *context, uint64_t *device_addr)
{
    struct card *card = context;
    uint32_t tried;
    for (tried = 0; tried < FIRMWARE_PAGES; tried++) {
        uint32_t page = card->next;
        card->next = (page + 1) % FIRMWARE_PAGES;
        if (!card->given[page]) {
            card->given[page] = 1;
            card->pages_given++;
            *device_addr = card->first_page + 4096ull * page;
            return 0;
        }
    }
    return 1;
}

static int32_t page_free(void *context, uint64_t device_addr)
{
    struct card *card = context;
    uint64_t offset = device_addr - card->first_page;
    /* The address comes from the card. */
    if (device_addr < card->first_page || offset % 4096 != 0 || offset / 4096 >= FIRMWARE_PAGES || !card->given[offset / 4096])
        return 1;
    card->given[offset / 4096] = 0;
    card->pages_back++;
    return 0;
}

static void page_free_all(void *context)
{
    struct card *card = context;
    uint32_t page;
    for (page = 0; page < FIRMWARE_PAGES; page++)
        card->given[page] = 0;
    card->next = card->pages_given = card->pages_back = 0;
}

/* Ends the program if a call has failed, with the text of its error. */
static void check(struct node *node, const char *what, int32_t result)
{
    static char text[200];
    if (result >= 0)
        return;
    bv_strerror_detail(node->device, text, sizeof text);
    print("failed: ");
    print(what);
    print(": ");
    print(text);
    print("\n");
    end(1);
}

static void require(const char *what, int holds)
{
    if (holds)
        return;
    print("failed: ");
    print(what);
    print("\n");
    end(1);
}

static void start(struct node *node, uint32_t number)
{
    bv_qp_init init = {0};
    bv_platform platform = {
        .context = &cards[number],
        .registers_size = cards[number].bar_size,
        .read32 = read32,
        .write32 = write32,
        .write64 = write64,
        .now = now,
        .memory = memory[number],
        .memory_size = BV_MEMORY_SIZE,
        .memory_device_addr = (uintptr_t)memory[number],
        .page_alloc = page_alloc,
        .page_free = page_free,
        .page_free_all = page_free_all,
        /* No barrier, wait or extent: the CPU's barriers, no pauses, and the card sees the CPU's addresses. */
    };
    check(node, "init", bv_init(storage[number], sizeof storage[number], &node->device));
    check(node, "bring-up", bv_bring_up(node->device, &platform, NULL));
    check(node, "the port", bv_wait_active(node->device, 1, 60000, &node->port));
    check(node, "alloc_pd", bv_alloc_pd(node->device, &node->pd));
    check(node, "create_cq", bv_create_cq(node->device, BV_MAX_SEND_BLOCKS + BV_MAX_RECV, &node->cq));
    init.pd = node->pd;
    init.send_cq = init.recv_cq = node->cq;
    init.qp_type = BV_QPT_RC;
    init.sq_sig_all = 1;
    init.max_send_wr = init.max_recv_wr = 16;
    init.max_send_sge = init.max_recv_sge = 1;
    check(node, "create_qp", bv_create_qp(node->device, &init, &node->qp));
    node->buffer = buffers[number];
    check(node, "reg_mr",
          bv_reg_mr(node->device, node->pd, node->buffer, 2 * BYTES, BV_ACCESS_LOCAL_WRITE | BV_ACCESS_REMOTE_WRITE, &node->mr));
    print("LID ");
    print_number(node->port.lid);
    print(" is up\n");
}

static void connect(struct node *node, const struct node *peer)
{
    bv_qp_attr attr = {0};
    attr.access = BV_ACCESS_REMOTE_WRITE;
    attr.dest_qp_num = peer->qp.qp_num;
    attr.path_mtu = node->port.active_mtu;
    attr.port_num = 1;
    attr.dlid = peer->port.lid;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    check(node, "modify_qp_to_rts", bv_modify_qp_to_rts(node->device, node->qp, &attr));
}

/* The byte that a card writes there. */
static uint8_t pattern(const struct node *node, size_t at)
{
    return (uint8_t)(at * 7 + at / 256 + node->port.lid);
}

/* Writes the first half of the buffer to the second half of the peer's. */
static void write_to(struct node *node, const struct node *peer)
{
    bv_sge sge = {(uintptr_t)node->buffer, BYTES, node->mr.lkey};
    bv_send_wr wr = {0};
    bv_wc wc;
    int32_t count;
    uint64_t end_of_it = nanoseconds() + TIMEOUT, next = 0;
    size_t at;
    for (at = 0; at < BYTES; at++)
        node->buffer[at] = pattern(node, at);
    wr.wr_id = 1;
    wr.opcode = BV_WR_RDMA_WRITE;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.remote_addr = (uintptr_t)(peer->buffer + BYTES);
    wr.rkey = peer->mr.rkey;
    check(node, "post_send", bv_post_send(node->device, node->qp, &wr, 1, NULL));
    while ((count = bv_poll_cq(node->device, node->cq, &wc, 1)) == 0) {
        /* Pages for the card's firmware, and its health: after the end of the card polling fails. */
        if (nanoseconds() >= next)
            check(node, "maintain", bv_maintain(node->device, &next));
        require("no completion in 10 s", nanoseconds() < end_of_it);
    }
    check(node, "poll_cq", count);
    require("the write did not succeed", wc.status == BV_WC_SUCCESS && wc.wr_id == 1);
    for (at = 0; at < BYTES; at++)
        require("other bytes were written", peer->buffer[BYTES + at] == pattern(node, at));
    print_number(BYTES);
    print(" bytes written to LID ");
    print_number(peer->port.lid);
    print(", each byte checked\n");
}

void firmware(void)
{
    uint32_t number;
    print("write-in-c on riscv64, virt\n");
    require("there are not two ConnectX cards that can be reset", find_cards(cards, 2) == 2);
    for (number = 0; number < 2; number++)
        start(&nodes[number], number);
    connect(&nodes[0], &nodes[1]);
    connect(&nodes[1], &nodes[0]);
    write_to(&nodes[0], &nodes[1]);
    write_to(&nodes[1], &nodes[0]);
    for (number = 0; number < 2; number++) {
        check(&nodes[number], "teardown", bv_take_down(nodes[number].device));
        print("down: ");
        print_number(cards[number].pages_back);
        print(" of ");
        print_number(cards[number].pages_given);
        print(" pages came back\n");
    }
    print("stack: ");
    print_number(stack_used());
    print(" of ");
    print_number(stack_size());
    print(" bytes were used\ndone\n");
    end(0);
}
