/* Every operation between two devices; what the callbacks were used for; teardown and a second life. */
#include "check.h"

static void succeeded(struct node *node, uint64_t wr_id, uint32_t opcode, uint32_t length)
{
    bv_wc wc = wait_for(node);
    CHECK(wc.status == BV_WC_SUCCESS && wc.vendor_err == 0);
    CHECK(wc.wr_id == wr_id && wc.opcode == opcode);
    CHECK(wc.byte_len == length);
    CHECK(wc.qp == node->qp.number && wc.qp_num == node->qp.qp_num);
}

static void operations(struct node *a, struct node *b)
{
    bv_sge sge = sge_of(a, 0, 100), two[2];
    bv_send_wr wr = wr_of(BV_WR_RDMA_WRITE, 1, &sge);
    bv_recv_wr recv;
    bv_wc wc;
    uint64_t old = 41, number;
    uint32_t imm;
    int i;

    for (i = 0; i < 4096; i++) {
        a->bytes[i] = (uint8_t)(i * 7 + 1);
        b->bytes[i] = 0;
    }
    /* A write goes where it is told, and nowhere else. */
    to_peer(&wr, b, 1000);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    succeeded(a, 1, BV_WC_RDMA_WRITE, 100);
    CHECK(memcmp(b->bytes + 1000, a->bytes, 100) == 0);
    CHECK(b->bytes[999] == 0 && b->bytes[1100] == 0);

    /* A read into two pieces. */
    two[0] = sge_of(a, 2000, 30);
    two[1] = sge_of(a, 3000, 70);
    wr = wr_of(BV_WR_RDMA_READ, 2, two);
    wr.num_sge = 2;
    to_peer(&wr, b, 1000);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    succeeded(a, 2, BV_WC_RDMA_READ, 100);
    CHECK(memcmp(a->bytes + 2000, b->bytes + 1000, 30) == 0);
    CHECK(memcmp(a->bytes + 3000, b->bytes + 1030, 70) == 0);

    /* An inline send with immediate data into a receive. */
    sge = sge_of(b, 0, 64);
    memset(&recv, 0, sizeof recv);
    recv.wr_id = 30;
    recv.sg_list = &sge;
    recv.num_sge = 1;
    OK(b, bv_post_recv(b->device, b->qp, &recv, 1, NULL));
    wr = wr_of(BV_WR_SEND_WITH_IMM, 3, NULL);
    wr.send_flags = BV_SEND_INLINE | BV_SEND_SOLICITED;
    wr.inline_data = "short";
    wr.inline_length = 5;
    memcpy(&wr.imm_data, "\x12\x34\x56\x78", 4);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    succeeded(a, 3, BV_WC_SEND, 5);
    wc = wait_for(b);
    CHECK(wc.status == BV_WC_SUCCESS && wc.wr_id == 30 && wc.opcode == BV_WC_RECV && wc.byte_len == 5);
    memcpy(&imm, "\x12\x34\x56\x78", 4);
    CHECK(wc.wc_flags == BV_WC_WITH_IMM && wc.imm_data == imm);
    CHECK(memcmp(b->bytes, "short", 5) == 0);

    /* A write with immediate data takes a receive, and puts its bytes elsewhere. */
    recv.wr_id = 31;
    OK(b, bv_post_recv(b->device, b->qp, &recv, 1, NULL));
    sge = sge_of(a, 0, 8);
    wr = wr_of(BV_WR_RDMA_WRITE_WITH_IMM, 4, &sge);
    to_peer(&wr, b, 1200);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    succeeded(a, 4, BV_WC_RDMA_WRITE, 8);
    wc = wait_for(b);
    CHECK(wc.wr_id == 31 && wc.opcode == BV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 8);
    CHECK(memcmp(b->bytes + 1200, a->bytes, 8) == 0);

    /* Atomics return the old value. */
    memcpy(b->bytes + 512, &old, 8);
    sge = sge_of(a, 64, 8);
    wr = wr_of(BV_WR_ATOMIC_FETCH_AND_ADD, 5, &sge);
    wr.compare_add = 1;
    to_peer(&wr, b, 512);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    succeeded(a, 5, BV_WC_FETCH_ADD, 8);
    memcpy(&number, a->bytes + 64, 8);
    CHECK(number == 41);
    wr.wr_id = 6;
    wr.opcode = BV_WR_ATOMIC_CMP_AND_SWP;
    wr.compare_add = 42;
    wr.swap = 7;
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    succeeded(a, 6, BV_WC_COMP_SWAP, 8);
    memcpy(&number, a->bytes + 64, 8);
    CHECK(number == 42);
    memcpy(&number, b->bytes + 512, 8);
    CHECK(number == 7);
}

/* A list is posted whole, and completes in order. */
static void lists(struct node *a, struct node *b)
{
    bv_sge sges[3];
    bv_send_wr wrs[3];
    size_t posted = 77;
    bv_wc wcs[BV_MAX_POLL + 4];
    int32_t count, i;
    for (i = 0; i < 3; i++) {
        sges[i] = sge_of(a, (size_t)i * 8, 8);
        wrs[i] = wr_of(BV_WR_RDMA_WRITE, 100 + (uint64_t)i, &sges[i]);
        to_peer(&wrs[i], b, 2000 + 8 * (size_t)i);
    }
    OK(a, bv_post_send(a->device, a->qp, wrs, 3, &posted));
    CHECK(posted == 3);
    for (i = 0; i < 3;) {
        count = bv_poll_cq(a->device, a->cq, wcs, sizeof wcs / sizeof *wcs);
        CHECK(count >= 0);
        for (int32_t k = 0; k < count; k++, i++)
            CHECK(wcs[k].wr_id == 100 + (uint64_t)i && wcs[k].status == BV_WC_SUCCESS);
        a->platform.wait(a->platform.context, 0);
    }
    CHECK(memcmp(b->bytes + 2000, a->bytes, 24) == 0);
}

int main(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *a = add_node(world, 1), *b = add_node(world, 2);
    bv_device_attr device;
    bv_qp_info info;
    bv_qp old;
    bv_mr old_mr;
    uint8_t gid[17];
    uint64_t next = 0;
    size_t callback, number;

    /* One device with as few callbacks as may be. */
    b->platform.write64 = NULL;
    b->platform.barrier = NULL;
    CHECK(bv_storage_size() <= BV_STORAGE_SIZE && BV_STORAGE_ALIGN % bv_storage_align() == 0);
    bring_up(a);
    bring_up(b);
    CHECK(a->port.lid == 1 && b->port.lid == 2 && a->port.state == BV_PORT_ACTIVE && a->port.phys_state == 5);
    OK(a, bv_query_device(a->device, &device));
    CHECK(device.phys_port_cnt == 1 && device.atomics == 1 && device.max_sge >= 2 && device.node_guid != 0);
    memset(gid, 0xee, sizeof gid);
    OK(a, bv_query_gid(a->device, 1, 0, gid));
    CHECK(gid[0] == 0xfe && gid[1] == 0x80 && gid[16] == 0xee);

    /* Memory of any size, as often as one likes, also beside the pages of the firmware. */
    for (number = 4096; number <= 1 << 20; number *= 4)
        CHECK(bv_sim_alloc(a->host, number, NULL) && bv_sim_alloc(a->host, number, &next) && next != 0);
    next = 0;

    connect_pair(a, b);
    OK(a, bv_query_qp(a->device, a->qp, &info));
    CHECK(info.qp_state == BV_QPS_RTS && info.qp_num == a->qp.qp_num && info.max_send_wr >= 16);
    operations(a, b);
    operations(b, a);
    lists(a, b);
    OK(a, bv_maintain(a->device, &next));
    CHECK(next > 0);
    OK(a, bv_maintain(a->device, NULL));

    /* A queue pair is used again after a RESET. */
    OK(a, reset_qp(a, a->qp));
    OK(a, bv_query_qp(a->device, a->qp, &info));
    CHECK(info.qp_state == BV_QPS_RESET);
    {
        bv_qp_attr reset;
        memset(&reset, 0, sizeof reset);
        reset.qp_state = BV_QPS_RESET;
        OK(b, bv_modify_qp(b->device, b->qp, &reset, BV_QP_STATE));
    }
    {
        bv_wc none;
        RESULT(a, 0, bv_poll_cq(a->device, a->cq, &none, 1));
        RESULT(b, 0, bv_poll_cq(b->device, b->cq, &none, 1));
    }
    connect_pair(a, b);
    operations(a, b);

    for (callback = 0; callback <= BV_SIM_EXTENT; callback++)
        if (callback != BV_SIM_PAGE_FREE)
            CHECK(bv_sim_calls(a->host, callback) > 0);
    CHECK(bv_sim_calls(b->host, BV_SIM_WRITE64) == 0 && bv_sim_calls(b->host, BV_SIM_BARRIER) == 0);

    /* What is destroyed one by one is gone; the rest goes with the device. */
    OK(a, bv_destroy_qp(a->device, a->qp));
    OK(a, bv_destroy_cq(a->device, a->cq));
    OK(a, bv_dereg_mr(a->device, a->mr));
    OK(a, bv_dealloc_pd(a->device, a->pd));
    OK(a, bv_take_down(a->device));
    RESULT(a, 0, bv_needs_reset(a->device));
    CHECK(bv_sim_calls(a->host, BV_SIM_PAGE_FREE) > 0);
    old = b->qp;
    old_mr = b->mr;
    OK(b, bv_take_down(b->device));
    RESULT(b, 0, bv_needs_reset(b->device));
    RESULT(b, -BV_ENODEV, bv_take_down(b->device));

    /* Both come up again, and the old numbers name nothing. */
    bring_up(a);
    OK(b, bv_bring_up(b->device, &b->platform, NULL));
    RESULT(b, -BV_EINVAL, bv_destroy_qp(b->device, old));
    RESULT(b, -BV_EINVAL, bv_dereg_mr(b->device, old_mr));
    OK(b, bv_take_down(b->device));
    bring_up(b);
    RESULT(b, -BV_EINVAL, bv_destroy_qp(b->device, old));
    connect_pair(a, b);
    operations(b, a);
    OK(a, bv_take_down(a->device));
    OK(b, bv_take_down(b->device));
    CHECK(bv_sim_findings(a->host) == 0 && bv_sim_findings(b->host) == 0);
    puts("transfers: ok");
    return 0;
}
