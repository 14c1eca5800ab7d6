/* XRC: one connection, two shared receive queues that requests name, the limit event, numbers that name nothing. */
#include "check.h"

static bv_srq make_srq(struct node *node, bv_xrcd xrcd)
{
    bv_srq_init init;
    bv_srq srq;
    memset(&init, 0, sizeof init);
    init.pd = node->pd;
    init.xrcd = xrcd;
    init.cq = node->cq;
    init.max_wr = 7;
    init.max_sge = 1;
    OK(node, bv_create_xrc_srq(node->device, &init, &srq));
    return srq;
}

/* Takes the events until one has this type. */
static bv_event event_of(struct node *node, uint32_t type)
{
    bv_event event;
    int i;
    for (i = 0; i < 100; i++) {
        while (bv_poll_event(node->device, &event) == 1)
            if (event.event_type == type)
                return event;
        node->platform.wait(node->platform.context, 0);
    }
    CHECK(!"the event");
    return event;
}

static void domains(struct node *node)
{
    bv_xrcd xrcds[BV_MAX_XRCD], more, old;
    int i;
    for (i = 0; i < BV_MAX_XRCD; i++) {
        OK(node, bv_alloc_xrcd(node->device, &xrcds[i]));
        CHECK(xrcds[i].number != 0 && (i == 0 || xrcds[i].number != xrcds[i - 1].number));
    }
    RESULT(node, -BV_ENOMEM, bv_alloc_xrcd(node->device, &more));
    CHECK(says(node, "4 XRC domains"));
    old = xrcds[2];
    OK(node, bv_dealloc_xrcd(node->device, old));
    RESULT(node, -BV_EINVAL, bv_dealloc_xrcd(node->device, old));
    CHECK(says(node, "no XRC domain"));
    /* In its place, with another number. */
    OK(node, bv_alloc_xrcd(node->device, &xrcds[2]));
    CHECK(xrcds[2].number != old.number);
    RESULT(node, -BV_EINVAL, bv_dealloc_xrcd(node->device, old));
    for (i = 0; i < BV_MAX_XRCD; i++)
        OK(node, bv_dealloc_xrcd(node->device, xrcds[i]));
    old.number = 0;
    RESULT(node, -BV_EINVAL, bv_dealloc_xrcd(node->device, old));
    old.number = UINT64_MAX;
    RESULT(node, -BV_EINVAL, bv_dealloc_xrcd(node->device, old));
    RESULT(node, -BV_EINVAL, bv_alloc_xrcd(node->device, NULL));
}

int main(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *a = add_node(world, 1), *b = add_node(world, 2);
    bv_qp_init init;
    bv_xrcd of_a, of_b, none;
    bv_srq srqs[2];
    bv_qp target, initiator, plain;
    bv_sge sge, in;
    bv_send_wr wr;
    bv_recv_wr recv;
    bv_event event;
    bv_wc wc;
    uint64_t number;
    size_t posted;
    int round;

    bring_up(a);
    bring_up(b);
    domains(a);
    OK(a, bv_alloc_xrcd(a->device, &of_a));
    OK(b, bv_alloc_xrcd(b->device, &of_b));
    srqs[0] = make_srq(b, of_b);
    srqs[1] = make_srq(b, of_b);
    CHECK(srqs[0].srq_num != srqs[1].srq_num);

    /* The target is nothing but its domain, the initiator sends only. */
    none.number = 0;
    RESULT(b, -BV_EINVAL, bv_create_xrc_recv_qp(b->device, none, &target));
    OK(b, bv_create_xrc_recv_qp(b->device, of_b, &target));
    init = qp_init_of(a);
    RESULT(a, -BV_EINVAL, bv_create_xrc_send_qp(a->device, &init, none, &initiator));
    OK(a, bv_create_xrc_send_qp(a->device, &init, of_a, &initiator));
    plain = a->qp;
    a->qp = initiator;
    b->qp = target;
    connect_pair(a, b);

    /* Each message goes to the queue that it names, and says by which target it came. */
    for (round = 0; round < 20; round++) {
        int to = round % 3 == 0;
        uint32_t length = 1 + (uint32_t)round * 31 % 500;
        memset(a->bytes, round + 1, 512);
        memset(b->bytes, 0, 4096);
        in = sge_of(b, (size_t)to * 2048, 512);
        recv = recv_of(100 + (uint64_t)round, &in);
        OK(b, bv_post_srq_recv(b->device, srqs[to], &recv, 1, &posted));
        CHECK(posted == 1);
        sge = sge_of(a, 0, length);
        wr = wr_of(BV_WR_SEND, (uint64_t)round, &sge);
        wr.remote_srqn = srqs[to].srq_num;
        OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
        wc = wait_for(a);
        CHECK(wc.status == BV_WC_SUCCESS && wc.wr_id == (uint64_t)round && wc.qp == initiator.number);
        wc = wait_for(b);
        CHECK(wc.status == BV_WC_SUCCESS && wc.wr_id == 100 + (uint64_t)round && wc.byte_len == length);
        CHECK(wc.opcode == BV_WC_RECV && wc.qp == target.number && wc.qp_num == target.qp_num);
        CHECK(memcmp(b->bytes + (size_t)to * 2048, a->bytes, length) == 0);
        CHECK(b->bytes[(size_t)to * 2048 + length] == 0 && b->bytes[(size_t)(1 - to) * 2048] == 0);
    }

    /* A write and an atomic name a queue for its protection domain. */
    sge = sge_of(a, 0, 64);
    wr = wr_of(BV_WR_RDMA_WRITE, 1, &sge);
    to_peer(&wr, b, 1000);
    wr.remote_srqn = srqs[0].srq_num;
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(wait_for(a).status == BV_WC_SUCCESS && memcmp(b->bytes + 1000, a->bytes, 64) == 0);
    number = 41;
    memcpy(b->bytes + 512, &number, 8);
    sge = sge_of(a, 64, 8);
    wr = wr_of(BV_WR_ATOMIC_FETCH_AND_ADD, 2, &sge);
    wr.compare_add = 1;
    to_peer(&wr, b, 512);
    wr.remote_srqn = srqs[1].srq_num;
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(wait_for(a).status == BV_WC_SUCCESS);
    memcpy(&number, a->bytes + 64, 8);
    CHECK(number == 41);
    memcpy(&number, b->bytes + 512, 8);
    CHECK(number == 42);

    /* The limit is reached when the last but one is taken, once. */
    for (round = 0; round < 2; round++) {
        in = sge_of(b, 0, 64);
        recv = recv_of(300 + (uint64_t)round, &in);
        OK(b, bv_post_srq_recv(b->device, srqs[0], &recv, 1, NULL));
    }
    RESULT(b, -BV_EINVAL, bv_arm_srq(b->device, srqs[0], 1000));
    OK(b, bv_arm_srq(b->device, srqs[0], 2));
    wr = wr_of(BV_WR_SEND, 3, NULL);
    wr.send_flags = BV_SEND_INLINE;
    wr.inline_data = "limit";
    wr.inline_length = 5;
    wr.remote_srqn = srqs[0].srq_num;
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(wait_for(a).status == BV_WC_SUCCESS);
    CHECK(wait_for(b).wr_id == 300 && memcmp(b->bytes, "limit", 5) == 0);
    event = event_of(b, BV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(event.object == srqs[0].number && event.port == 0);

    /* What has no receives takes none, and a full queue says so. */
    RESULT(b, -BV_EOPNOTSUPP, bv_post_recv(b->device, target, &recv, 1, NULL));
    RESULT(a, -BV_EOPNOTSUPP, bv_post_recv(a->device, initiator, &recv, 1, NULL));
    for (round = 0; round < 8; round++) {
        int32_t result = bv_post_srq_recv(b->device, srqs[1], &recv, 1, &posted);
        CHECK(result == (round < 7 ? 0 : -BV_ENOSPC) && posted == (round < 7));
    }
    CHECK(bv_sim_findings(a->host) == 0 && bv_sim_findings(b->host) == 0);

    /* A queue that is gone is named by nobody: the request fails, and no byte moves. */
    RESULT(b, -BV_EBUSY, bv_dealloc_xrcd(b->device, of_b));
    OK(b, bv_destroy_srq(b->device, srqs[1]));
    RESULT(b, -BV_EINVAL, bv_destroy_srq(b->device, srqs[1]));
    RESULT(b, -BV_EINVAL, bv_post_srq_recv(b->device, srqs[1], &recv, 1, NULL));
    RESULT(b, -BV_EINVAL, bv_arm_srq(b->device, srqs[1], 1));
    memset(b->bytes, 0, 64);
    wr.remote_srqn = srqs[1].srq_num;
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(wait_for(a).status == BV_WC_REM_ACCESS_ERR && b->bytes[0] == 0);

    OK(b, bv_destroy_srq(b->device, srqs[0]));
    OK(b, bv_destroy_qp(b->device, target));
    OK(b, bv_dealloc_xrcd(b->device, of_b));
    OK(a, reset_qp(a, initiator));
    OK(a, bv_destroy_qp(a->device, initiator));
    RESULT(a, -BV_EINVAL, bv_destroy_qp(a->device, initiator));
    OK(a, bv_dealloc_xrcd(a->device, of_a));
    OK(a, bv_destroy_qp(a->device, plain));

    /* What is left goes with the device, and names nothing afterwards. */
    OK(b, bv_alloc_xrcd(b->device, &of_b));
    srqs[0] = make_srq(b, of_b);
    OK(b, bv_take_down(b->device));
    RESULT(b, -BV_ENODEV, bv_dealloc_xrcd(b->device, of_b));
    OK(b, bv_bring_up(b->device, &b->platform, NULL));
    RESULT(b, -BV_EINVAL, bv_dealloc_xrcd(b->device, of_b));
    RESULT(b, -BV_EINVAL, bv_destroy_srq(b->device, srqs[0]));
    OK(a, bv_take_down(a->device));
    OK(b, bv_take_down(b->device));
    puts("xrc: ok");
    return 0;
}
