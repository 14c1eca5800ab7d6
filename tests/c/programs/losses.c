/* Peers and devices that go away, and the events of that. */
#include "check.h"

/* The next event of this type; others are passed over. */
static bv_event event_of(struct node *node, uint32_t event_type)
{
    bv_event event;
    int i;
    for (i = 0; i < 1000; i++) {
        int32_t result = bv_poll_event(node->device, &event);
        CHECK(result >= 0);
        if (result == 1 && event.event_type == event_type)
            return event;
        node->platform.wait(node->platform.context, 0);
    }
    fprintf(stderr, "no event of type %u\n", (unsigned)event_type);
    exit(1);
}

int main(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *a = add_node(world, 1), *b = add_node(world, 2), *c = add_node(world, 3);
    bv_sge sge;
    bv_send_wr wr;
    bv_wc wc, flushed[8];
    bv_qp_init init;
    bv_qp datagrams;
    bv_qp_attr attr;
    bv_event event;
    int32_t result = 0;
    int i;

    bring_up(a);
    bring_up(b);
    bring_up(c);
    connect_pair(a, b);
    while (bv_poll_event(a->device, &event) == 1)
        ;

    /* An armed queue gives one event, which names it. */
    OK(a, bv_req_notify_cq(a->device, a->cq, 0));
    RESULT(a, -BV_EINVAL, bv_req_notify_cq(a->device, a->cq, 2));
    sge = sge_of(a, 0, 8);
    wr = wr_of(BV_WR_RDMA_WRITE, 1, &sge);
    to_peer(&wr, b, 0);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    event = event_of(a, BV_EVENT_COMPLETION);
    CHECK(event.object == a->cq.number && event.port == 0);
    CHECK(wait_for(a).status == BV_WC_SUCCESS);

    /* A write that the peer does not allow: the status says so, and what follows is flushed. */
    wr.rkey ^= 0x100;
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    wc = wait_for(a);
    CHECK(wc.status == BV_WC_REM_ACCESS_ERR && wc.wr_id == 1);
    wr.wr_id = 2;
    result = bv_post_send(a->device, a->qp, &wr, 1, NULL);
    if (result == 0) {
        wc = wait_for(a);
        CHECK(wc.status == BV_WC_WR_FLUSH_ERR && wc.wr_id == 2);
        CHECK((wc.wc_flags & BV_WC_DEVICE_LOST) == 0);
    }
    event = event_of(b, BV_EVENT_QP_ACCESS_ERR);
    CHECK(event.object == b->qp.number);

    /* The port of a pulled cable. */
    bv_sim_set_link(b->host, 0);
    event = event_of(b, BV_EVENT_PORT_ERR);
    CHECK(event.object == 0 && event.port == 1);
    bv_sim_set_link(b->host, 1);
    OK(b, bv_wait_active(b->device, 1, 60000, &b->port));

    /* A peer that is gone. */
    OK(a, reset_qp(a, a->qp));
    RESULT(a, 0, bv_poll_cq(a->device, a->cq, &wc, 1));
    attr = attr_to(a, c);
    OK(a, bv_modify_qp_to_rts(a->device, a->qp, &attr));
    attr = attr_to(c, a);
    OK(c, bv_modify_qp_to_rts(c->device, c->qp, &attr));
    init = qp_init_of(c);
    OK(c, bv_create_ud_qp(c->device, &init, &datagrams));
    bv_sim_remove(c->host);
    to_peer(&wr, c, 0);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(wait_for(a).status == BV_WC_RETRY_EXC_ERR);

    /* The device itself is gone: what was posted is flushed, with the reason, and then the queue says so. With the queue pair
       of datagrams completions are polled another way. */
    wr = wr_of(BV_WR_RDMA_WRITE, 9, NULL);
    sge = sge_of(c, 0, 8);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    to_peer(&wr, a, 0);
    for (i = 0; i < 3; i++) {
        wr.wr_id = 9 + i;
        OK(c, bv_post_send(c->device, c->qp, &wr, 1, NULL));
    }
    for (i = 0; i < 1000 && (result = bv_maintain(c->device, NULL)) == 0; i++)
        bv_sim_advance(world, 100000000);
    CHECK(result < 0);
    RESULT(c, 3, bv_poll_cq(c->device, c->cq, flushed, 8));
    for (i = 0; i < 3; i++)
        CHECK(flushed[i].wr_id == 9 + (uint64_t)i && flushed[i].status == BV_WC_WR_FLUSH_ERR && (flushed[i].wc_flags & BV_WC_DEVICE_LOST) != 0);
    RESULT(c, -BV_EIO, bv_poll_cq(c->device, c->cq, &wc, 1));
    CHECK(says(c, "lost"));
    RESULT(c, -BV_EIO, bv_post_send(c->device, c->qp, &wr, 1, NULL));
    CHECK(bv_take_down(c->device) < 0);
    RESULT(c, -BV_ENODEV, bv_take_down(c->device));

    /* The others are as they were. */
    OK(a, bv_take_down(a->device));
    OK(b, bv_take_down(b->device));
    CHECK(bv_sim_findings(a->host) == 0 && bv_sim_findings(b->host) == 0);
    puts("losses: ok");
    return 0;
}
