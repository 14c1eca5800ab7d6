#include "node.h"

#include "failure.h"
#include "interrupts.h"
#include "machine.h"

/* Nanoseconds between two calls of bv_maintain, at most. */
#define MAINTAIN_INTERVAL 1000000000u

void find_nodes(struct node *nodes, size_t count)
{
    struct function functions[32];
    size_t number;
    require("the number of usable ConnectX cards is not the one that the program needs", find_cards(functions, 32) >= count);
    for (number = 0; number < count; number++) {
        nodes[number].card.function = functions[number];
        require("the machine has too little memory for the pages of a card", give_pages(&nodes[number].card, number));
    }
}

void bring_up(struct node *node, uint8_t *memory, uint8_t *buffer, size_t buffer_size)
{
    bv_qp_init init = {0};
    bv_platform platform = platform_of(&node->card, memory);
    check(node->device, "init", bv_init(node->storage, sizeof node->storage, &node->device));
    check(node->device, "bring-up", bv_bring_up(node->device, &platform, NULL));
    check(node->device, "the port", bv_wait_active(node->device, 1, 60000, &node->port));
    check(node->device, "alloc_pd", bv_alloc_pd(node->device, &node->pd));
    check(node->device, "create_cq", bv_create_cq(node->device, BV_MAX_SEND_BLOCKS + BV_MAX_RECV, &node->cq));
    init.pd = node->pd;
    init.send_cq = init.recv_cq = node->cq;
    init.qp_type = BV_QPT_RC;
    init.sq_sig_all = 1;
    init.max_send_wr = init.max_recv_wr = 16;
    init.max_send_sge = init.max_recv_sge = 1;
    check(node->device, "create_qp", bv_create_qp(node->device, &init, &node->qp));
    check(node->device, "reg_mr",
          bv_reg_mr(node->device, node->pd, buffer, buffer_size, BV_ACCESS_LOCAL_WRITE | BV_ACCESS_REMOTE_WRITE, &node->mr));
    node->buffer = buffer;
    node->address.lid = node->port.lid;
    node->address.qp_num = node->qp.qp_num;
    /* A connection that follows another one soon must not take its packets for its own. */
    node->address.psn = (uint32_t)nanoseconds() & 0xffffff;
    print("LID ");
    print_number(node->port.lid);
    print(" is up\n");
}

void connect(struct node *node, const struct address *peer, uint32_t path_mtu)
{
    bv_qp_attr attr = {0};
    attr.access = BV_ACCESS_REMOTE_WRITE;
    attr.dest_qp_num = peer->qp_num;
    attr.rq_psn = peer->psn;
    attr.sq_psn = node->address.psn;
    attr.path_mtu = path_mtu;
    attr.port_num = 1;
    attr.dlid = peer->lid;
    attr.min_rnr_timer = 12;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
    check(node->device, "modify_qp_to_rts", bv_modify_qp_to_rts(node->device, node->qp, &attr));
}

/* Asks for an event, and the next time sleeps until its interrupt. Returns whether that should have come by now and did not. */
static int sleep(struct node *node, uint64_t deadline)
{
    bv_event event;
    int32_t count;
    uint32_t came;
    if (!node->armed) {
        check(node->device, "req_notify_cq", bv_req_notify_cq(node->device, node->cq, 0));
        node->armed = 1;
        /* A completion may have come before: polled once more, it is found. */
        return 0;
    }
    came = sleep_until(deadline);
    node->interrupts += came;
    while ((count = bv_poll_event(node->device, &event)) == 1)
        if (event.event_type == BV_EVENT_COMPLETION)
            node->armed = 0;
    check(node->device, "poll_event", count);
    return came == 0;
}

bv_wc next_completion(struct node *node, uint64_t timeout)
{
    uint64_t end_of_it = nanoseconds() + timeout, maintain = nanoseconds() + MAINTAIN_INTERVAL, time;
    int32_t count;
    int overdue = 0;
    bv_wc wc;
    while ((count = bv_poll_cq(node->device, node->cq, &wc, 1)) == 0) {
        time = nanoseconds();
        require("no completion came in time", time < end_of_it);
        /* Pages for the card's firmware, and its health: after the end of the card polling fails. */
        if (time >= maintain) {
            check(node->device, "maintain", bv_maintain(node->device, NULL));
            maintain = time + MAINTAIN_INTERVAL;
        }
        if (node->events)
            overdue = sleep(node, maintain);
    }
    check(node->device, "poll_cq", count);
    /* The interrupt may have come after the sleep had ended by the time. */
    require("a completion came without its interrupt", !overdue || sleep_until(nanoseconds()) != 0);
    if (wc.status != BV_WC_SUCCESS) {
        print("failed: request ");
        print_number(wc.wr_id);
        print(" ended with status ");
        print_number(wc.status);
        print("\n");
        end(1);
    }
    return wc;
}

void take_down(struct node *node)
{
    check(node->device, "teardown", bv_take_down(node->device));
    print("down: ");
    print_number(node->card.pages_back);
    print(" of ");
    print_number(node->card.pages_given);
    print(" pages came back\n");
}

void done(void)
{
    print("stack: ");
    print_number(stack_used());
    print(" of ");
    print_number(stack_size());
    print(" bytes were used\ndone\n");
    end(0);
}
