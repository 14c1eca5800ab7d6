/* Completion queues of another size, and queues that are drained before their memory is used for something else. */
#include "check.h"

/* Completions that a drain gave. */
struct given {
    bv_wc wcs[32];
    size_t count;
    /* The callback calls the library, which it must not. */
    struct node *node;
};

static void take(void *context, const bv_wc *wc)
{
    struct given *given = (struct given *)context;
    CHECK(given->count < 32 && bv_maintain(given->node->device, NULL) == -BV_EBUSY);
    given->wcs[given->count++] = *wc;
}

static void resize(struct node *a, struct node *b)
{
    bv_cq cq = a->cq, stale;
    bv_sge sge = sge_of(a, 0, 8);
    bv_send_wr wr;
    uint64_t i;
    for (i = 0; i < 5; i++) {
        wr = wr_of(BV_WR_RDMA_WRITE, i, &sge);
        to_peer(&wr, b, 0);
        OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    }
    /* All five wait in it, and stay in their order. */
    a->platform.wait(a->platform.context, a->platform.now(a->platform.context) + 10000000);
    RESULT(a, -BV_EINVAL, bv_resize_cq(a->device, &cq, 0));
    CHECK(cq.cqe == a->cq.cqe);
    OK(a, bv_resize_cq(a->device, &cq, 2 * a->cq.cqe));
    CHECK(cq.number == a->cq.number && cq.cqe == 2 * a->cq.cqe);
    for (i = 0; i < 5; i++)
        CHECK(wait_for(a).wr_id == i);
    OK(a, bv_resize_cq(a->device, &cq, a->cq.cqe));
    CHECK(cq.cqe == a->cq.cqe);
    stale = cq;
    stale.number++;
    RESULT(a, -BV_EINVAL, bv_resize_cq(a->device, &stale, 64));
    RESULT(a, -BV_EINVAL, bv_resize_cq(a->device, NULL, 64));
}

int main(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *a = add_node(world, 1), *b = add_node(world, 2);
    struct given given, of_b;
    bv_sge sge;
    bv_send_wr wr;
    bv_recv_wr recv;
    bv_qp stale;
    bv_qp_info info;
    bv_wc wc;
    size_t i;

    bring_up(a);
    bring_up(b);
    connect_pair(a, b);
    resize(a, b);

    /* Sends that nobody has a receive for, and receives that nobody sends to. */
    memset(&given, 0, sizeof given);
    given.node = a;
    sge = sge_of(a, 0, 8);
    for (i = 0; i < 3; i++) {
        wr = wr_of(BV_WR_SEND, 10 + i, &sge);
        OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    }
    sge = sge_of(a, 1024, 64);
    memset(&recv, 0, sizeof recv);
    recv.sg_list = &sge;
    recv.num_sge = 1;
    for (i = 0; i < 2; i++) {
        recv.wr_id = 20 + i;
        OK(a, bv_post_recv(a->device, a->qp, &recv, 1, NULL));
    }
    stale = a->qp;
    stale.number++;
    RESULT(a, -BV_EINVAL, bv_drain_sq(a->device, stale, 1000, take, &given));
    RESULT(a, -BV_EINVAL, bv_drain_rq(a->device, stale, 1000, take, &given));
    CHECK(given.count == 0);
    RESULT(a, 3, bv_drain_sq(a->device, a->qp, 1000, take, &given));
    OK(a, bv_query_qp(a->device, a->qp, &info));
    CHECK(info.qp_state == BV_QPS_ERR && info.send_blocks == 0);
    CHECK(bv_drain_rq(a->device, a->qp, 1000, take, &given) >= 0 && given.count == 5);
    for (i = 0; i < 5; i++) {
        size_t j, found = 0;
        uint64_t wr_id = i < 3 ? 10 + i : 20 + i - 3;
        for (j = 0; j < 5; j++)
            found += given.wcs[j].wr_id == wr_id;
        CHECK(found == 1 && given.wcs[i].status == BV_WC_WR_FLUSH_ERR && given.wcs[i].qp == a->qp.number);
    }
    /* Receives alone: nothing else has flushed them. */
    memset(&of_b, 0, sizeof of_b);
    of_b.node = b;
    sge = sge_of(b, 1024, 64);
    for (i = 0; i < 2; i++) {
        recv.wr_id = 30 + i;
        OK(b, bv_post_recv(b->device, b->qp, &recv, 1, NULL));
    }
    RESULT(b, 2, bv_drain_rq(b->device, b->qp, 1000, take, &of_b));
    CHECK(of_b.count == 2 && of_b.wcs[0].wr_id == 30 && of_b.wcs[1].wr_id == 31);
    CHECK(of_b.wcs[0].status == BV_WC_WR_FLUSH_ERR && of_b.wcs[1].status == BV_WC_WR_FLUSH_ERR);
    /* Nothing is left, and the memory may go. */
    CHECK(bv_poll_cq(a->device, a->cq, &wc, 1) == 0);
    RESULT(a, 0, bv_drain_sq(a->device, a->qp, 1000, NULL, NULL));
    RESULT(a, 0, bv_drain_rq(a->device, a->qp, 1000, NULL, NULL));
    OK(a, bv_dereg_mr(a->device, a->mr));
    CHECK(bv_sim_findings(a->host) == 0 && bv_sim_findings(b->host) == 0);
    OK(a, bv_take_down(a->device));
    RESULT(a, -BV_ENODEV, bv_drain_sq(a->device, a->qp, 1000, NULL, NULL));
    OK(b, bv_take_down(b->device));
    puts("ends: ok");
    return 0;
}
