/* Two cards of one machine without an operating system: each writes into a buffer of the other. */
#include "failure.h"
#include "machine.h"
#include "node.h"

#define BYTES 16384
/* Nanoseconds that a write may take. */
#define TIMEOUT 10000000000u

static struct node nodes[2];
/* What the cards use: the first half of a buffer is written by the program, the second one by the peer. */
static _Alignas(4096) __attribute__((section(".dma"))) uint8_t memory[2][BV_MEMORY_SIZE];
static _Alignas(4096) __attribute__((section(".dma"))) uint8_t buffers[2][2 * BYTES];

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
    size_t at;
    for (at = 0; at < BYTES; at++)
        node->buffer[at] = pattern(node, at);
    wr.wr_id = 1;
    wr.opcode = BV_WR_RDMA_WRITE;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.remote_addr = (uintptr_t)(peer->buffer + BYTES);
    wr.rkey = peer->mr.rkey;
    check(node->device, "post_send", bv_post_send(node->device, node->qp, &wr, 1, NULL));
    require("the completion is of another request", next_completion(node, TIMEOUT).wr_id == 1);
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
    find_nodes(nodes, 2);
    for (number = 0; number < 2; number++)
        bring_up(&nodes[number], memory[number], buffers[number], sizeof buffers[number]);
    connect(&nodes[0], &nodes[1].address, nodes[0].port.active_mtu);
    connect(&nodes[1], &nodes[0].address, nodes[1].port.active_mtu);
    write_to(&nodes[0], &nodes[1]);
    write_to(&nodes[1], &nodes[0]);
    for (number = 0; number < 2; number++)
        take_down(&nodes[number]);
    done();
}
