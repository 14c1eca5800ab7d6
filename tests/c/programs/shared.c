/* A shared receive queue: two queue pairs take from it, the limit event, what is refused, and its end. */
#include "check.h"

int main(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *a = add_node(world, 1), *b = add_node(world, 2);
    bv_qp senders[2], takers[2], refused;
    bv_srq_init srq_init;
    bv_qp_init init;
    bv_srq srq, none;
    bv_sge sge, in[7];
    bv_recv_wr recv[8];
    bv_send_wr wr;
    bv_event event;
    bv_wc wc;
    size_t posted;
    int i, round, taken[7] = {0};

    bring_up(a);
    bring_up(b);
    memset(&srq_init, 0, sizeof srq_init);
    srq_init.pd = b->pd;
    srq_init.max_wr = 7;
    srq_init.max_sge = 1;
    OK(b, bv_create_srq(b->device, &srq_init, &srq));
    RESULT(b, -BV_EINVAL, bv_create_srq(b->device, NULL, &none));
    srq_init.max_wr = BV_MAX_SRQ_RECV + 1;
    RESULT(b, -BV_ENOMEM, bv_create_srq(b->device, &srq_init, &none));
    srq_init.pd.number = 77;
    RESULT(b, -BV_EINVAL, bv_create_srq(b->device, &srq_init, &none));

    init = qp_init_of(b);
    init.max_recv_wr = init.max_recv_sge = 1000000;
    none.number = none.srq_num = 0;
    RESULT(b, -BV_EINVAL, bv_create_qp_with_srq(b->device, &init, none, &refused));
    init.qp_type = BV_QPT_UC;
    RESULT(b, -BV_EINVAL, bv_create_qp_with_srq(b->device, &init, srq, &refused));
    init.qp_type = BV_QPT_RC;
    for (i = 0; i < 2; i++) {
        bv_qp_init sender = qp_init_of(a);
        OK(a, bv_create_qp(a->device, &sender, &senders[i]));
        OK(b, bv_create_qp_with_srq(b->device, &init, srq, &takers[i]));
        a->qp = senders[i];
        b->qp = takers[i];
        connect_pair(a, b);
    }

    for (i = 0; i < 8; i++) {
        in[i % 7] = sge_of(b, (size_t)(i % 7) * 512, 512);
        recv[i] = recv_of(100 + (uint64_t)i, &in[i % 7]);
    }
    /* They have none of their own. */
    RESULT(b, -BV_EOPNOTSUPP, bv_post_recv(b->device, takers[0], recv, 1, NULL));
    CHECK(says(b, "bv_post_srq_recv"));
    RESULT(b, -BV_ENOSPC, bv_post_srq_recv(b->device, srq, recv, 8, &posted));
    CHECK(posted == 7 && says(b, "the shared receive queue is full: it has room for 7 receives"));
    OK(b, bv_arm_srq(b->device, srq, 2));

    /* Whichever has a message takes the next. */
    for (round = 0; round < 7; round++) {
        int from = round % 3 == 1;
        uint32_t length = 1 + (uint32_t)round * 67;
        memset(a->bytes, round + 1, 512);
        sge = sge_of(a, 0, length);
        wr = wr_of(BV_WR_SEND, (uint64_t)round, &sge);
        OK(a, bv_post_send(a->device, senders[from], &wr, 1, NULL));
        wc = wait_for(a);
        CHECK(wc.status == BV_WC_SUCCESS && wc.qp == senders[from].number);
        wc = wait_for(b);
        CHECK(wc.status == BV_WC_SUCCESS && wc.opcode == BV_WC_RECV && wc.byte_len == length);
        CHECK(wc.qp == takers[from].number && wc.qp_num == takers[from].qp_num);
        CHECK(wc.wr_id >= 100 && wc.wr_id < 107 && !taken[wc.wr_id - 100]++);
        CHECK(memcmp(b->bytes + (wc.wr_id - 100) * 512, a->bytes, length) == 0);
    }
    for (i = 0; bv_poll_event(b->device, &event) != 1 || event.event_type != BV_EVENT_SRQ_LIMIT_REACHED; i++) {
        CHECK(i < 100);
        b->platform.wait(b->platform.context, 0);
    }
    CHECK(event.object == srq.number);

    /* What was not taken stays when a queue pair goes; the other takes it. */
    OK(b, bv_post_srq_recv(b->device, srq, recv, 1, NULL));
    RESULT(b, -BV_EBUSY, bv_destroy_srq(b->device, srq));
    OK(b, reset_qp(b, takers[0]));
    OK(b, bv_destroy_qp(b->device, takers[0]));
    RESULT(b, -BV_EINVAL, bv_destroy_qp(b->device, takers[0]));
    sge = sge_of(a, 0, 8);
    wr = wr_of(BV_WR_SEND, 9, &sge);
    OK(a, bv_post_send(a->device, senders[1], &wr, 1, NULL));
    CHECK(wait_for(a).status == BV_WC_SUCCESS);
    wc = wait_for(b);
    CHECK(wc.wr_id == 100 && wc.qp == takers[1].number);
    CHECK(bv_sim_findings(a->host) == 0 && bv_sim_findings(b->host) == 0);

    /* Its place has room for another of both kinds. */
    OK(b, bv_destroy_qp(b->device, takers[1]));
    OK(b, bv_destroy_srq(b->device, srq));
    RESULT(b, -BV_EINVAL, bv_post_srq_recv(b->device, srq, recv, 1, NULL));
    srq_init.pd = b->pd;
    srq_init.max_wr = BV_MAX_SRQ_RECV;
    OK(b, bv_create_srq(b->device, &srq_init, &none));
    CHECK(none.number != srq.number);
    RESULT(b, -BV_EINVAL, bv_create_qp_with_srq(b->device, &init, srq, &refused));
    OK(b, bv_destroy_srq(b->device, none));
    printf("shared: ok\n");
    return 0;
}
