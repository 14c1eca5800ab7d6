/* What is refused, with which errno and which text; nothing that is refused changes anything. */
#include "check.h"

/* A page that is none: its address is not a multiple of 4096. */
static int32_t odd_page(void *context, uint64_t *device_addr)
{
    (void)context;
    *device_addr = 0x7000000008u;
    return 0;
}

/* The host's own map, and whether its extents are empty. */
static int32_t (*host_extent)(void *context, uint64_t addr, uint64_t *device_addr, uint64_t *len);
static int empty_extents;

static int32_t extent(void *context, uint64_t addr, uint64_t *device_addr, uint64_t *len)
{
    int32_t result = host_extent(context, addr, device_addr, len);
    if (empty_extents)
        *len = 0;
    return result;
}

static void storage_and_platform(struct node *node)
{
    bv_platform good = node->platform, bad;
    bv_config config;
    bv_device *device;
    bv_pd pd;
    bv_wc wc;
    char *bytes = (char *)node->storage.bytes;

    CHECK(bv_init(NULL, BV_STORAGE_SIZE, &device) == -BV_EINVAL);
    CHECK(bv_init(bytes, BV_STORAGE_SIZE, NULL) == -BV_EINVAL);
    /* Without a device there is no text: each cause has a number. */
    CHECK(bv_init(bytes, bv_storage_size() - 1, &device) == -BV_ENOMEM);
    CHECK(bv_init(bytes + 1, BV_STORAGE_SIZE - 1, &device) == -BV_EFAULT);
    /* Storage that is no device. */
    CHECK(bv_alloc_pd((bv_device *)(void *)bytes, &pd) == -BV_EINVAL);
    CHECK(bv_alloc_pd(NULL, &pd) == -BV_EINVAL && bv_maintain(NULL, NULL) == -BV_EINVAL);
    CHECK(bv_strerror_detail(NULL, NULL, 0) == 0);

    OK(node, bv_init(bytes, bv_storage_size(), &node->device));
    CHECK(bv_strerror_detail(node->device, NULL, 0) == 0);
    RESULT(node, -BV_ENODEV, bv_alloc_pd(node->device, &pd));
    CHECK(says(node, "not up"));
    memset(&node->cq, 0, sizeof node->cq);
    RESULT(node, -BV_ENODEV, bv_poll_cq(node->device, node->cq, &wc, 1));
    RESULT(node, -BV_ENODEV, bv_take_down(node->device));

    RESULT(node, -BV_EINVAL, bv_bring_up(node->device, NULL, NULL));
#define WITHOUT(member)                                                            \
    do {                                                                           \
        bad = good;                                                                \
        bad.member = 0;                                                            \
        RESULT(node, -BV_EINVAL, bv_bring_up(node->device, &bad, NULL));           \
        CHECK(says(node, #member));                                                \
    } while (0)
    WITHOUT(read32);
    WITHOUT(write32);
    WITHOUT(now);
    WITHOUT(memory);
    WITHOUT(page_alloc);
    WITHOUT(page_free);
    WITHOUT(page_free_all);
    bad = good;
    bad.memory_size = BV_MEMORY_SIZE - 1;
    RESULT(node, -BV_EINVAL, bv_bring_up(node->device, &bad, NULL));
    bad = good;
    bad.memory = (char *)good.memory + 8;
    RESULT(node, -BV_EINVAL, bv_bring_up(node->device, &bad, NULL));
    bad = good;
    bad.memory_device_addr += 8;
    RESULT(node, -BV_EINVAL, bv_bring_up(node->device, &bad, NULL));
    memset(&config, 0, sizeof config);
    config.flags = 0x80;
    RESULT(node, -BV_EINVAL, bv_bring_up(node->device, &good, &config));
    CHECK(says(node, "flags cannot be 128 (0x80)"));

    /* Registers that are not all there, and too few pages: the step is named, and the device can be brought up afterwards. */
    bad = good;
    bad.registers_size = 4;
    CHECK(bv_bring_up(node->device, &bad, NULL) < 0);
    CHECK(says(node, "bring-up failed at"));
    bad = good;
    bad.page_alloc = odd_page;
    RESULT(node, -BV_EINVAL, bv_bring_up(node->device, &bad, NULL));
    CHECK(says(node, "begins 8 bytes after a multiple of 4096"));
    bv_sim_limit_pages(node->host, 3);
    RESULT(node, -BV_ENOMEM, bv_bring_up(node->device, &good, NULL));
    CHECK(says(node, "bring-up failed at"));
    RESULT(node, 0, bv_needs_reset(node->device));
    bv_sim_limit_pages(node->host, UINT32_MAX);
}

static void objects(struct node *node)
{
    bv_pd pds[BV_MAX_PD], pd;
    bv_cq cqs[BV_MAX_CQ], cq;
    bv_qp qps[BV_MAX_QP], qp, stale;
    bv_mr mrs[BV_MAX_MR], mr;
    bv_qp_init init;
    bv_qp_attr attr;
    bv_qp_info info;
    bv_port_attr port;
    bv_event event;
    bv_wc wc;
    uint8_t gid[16];
    int i;
    uint64_t numbers[] = {0, 1, 0xffffffff, 1ull << 32, 1ull << 48, UINT64_MAX};

    RESULT(node, -BV_EBUSY, bv_bring_up(node->device, &node->platform, NULL));

    /* NULL, everywhere. */
    RESULT(node, -BV_EINVAL, bv_alloc_pd(node->device, NULL));
    RESULT(node, -BV_EINVAL, bv_reg_mr(node->device, node->pd, node->bytes, 4096, 0, NULL));
    RESULT(node, -BV_EINVAL, bv_reg_mr(node->device, node->pd, NULL, 4096, 0, &mr));
    RESULT(node, -BV_EINVAL, bv_create_cq(node->device, 16, NULL));
    RESULT(node, -BV_EINVAL, bv_create_qp(node->device, NULL, &qp));
    RESULT(node, -BV_EINVAL, bv_modify_qp_to_rts(node->device, node->qp, NULL));
    RESULT(node, -BV_EINVAL, bv_modify_qp(node->device, node->qp, NULL, BV_QP_STATE));
    RESULT(node, -BV_EINVAL, bv_query_qp(node->device, node->qp, NULL));
    RESULT(node, -BV_EINVAL, bv_query_port(node->device, 1, NULL));
    RESULT(node, -BV_EINVAL, bv_query_device(node->device, NULL));
    RESULT(node, -BV_EINVAL, bv_query_gid(node->device, 1, 0, NULL));
    RESULT(node, -BV_EINVAL, bv_wait_active(node->device, 1, 1, NULL));
    RESULT(node, -BV_EINVAL, bv_poll_event(node->device, NULL));
    RESULT(node, -BV_EINVAL, bv_poll_cq(node->device, node->cq, NULL, 1));
    RESULT(node, 0, bv_poll_cq(node->device, node->cq, NULL, 0));
    RESULT(node, -BV_EINVAL, bv_post_send(node->device, node->qp, NULL, 1, NULL));
    RESULT(node, 0, bv_post_send(node->device, node->qp, NULL, 0, NULL));
    RESULT(node, -BV_EINVAL, bv_post_recv(node->device, node->qp, NULL, 1, NULL));
    RESULT(node, -BV_EINVAL, bv_post_send(node->device, node->qp, (const bv_send_wr *)(const void *)(node->bytes + 1), 1, NULL));

    RESULT(node, -BV_EINVAL, bv_query_port(node->device, 0, &port));
    RESULT(node, -BV_EINVAL, bv_query_port(node->device, 2, &port));
    RESULT(node, -BV_EINVAL, bv_query_gid(node->device, 1, 60000, gid));

    /* Numbers that were never given. */
    for (i = 0; i < (int)(sizeof numbers / sizeof *numbers); i++) {
        pd.number = cq.number = qp.number = mr.number = numbers[i];
        if (numbers[i] != node->pd.number)
            RESULT(node, -BV_EINVAL, bv_dealloc_pd(node->device, pd));
        if (numbers[i] != node->cq.number)
            RESULT(node, -BV_EINVAL, bv_destroy_cq(node->device, cq));
        if (numbers[i] != node->cq.number)
            RESULT(node, -BV_EINVAL, bv_poll_cq(node->device, cq, &wc, 1));
        if (numbers[i] != node->qp.number)
            RESULT(node, -BV_EINVAL, bv_destroy_qp(node->device, qp));
        if (numbers[i] != node->mr.number)
            RESULT(node, -BV_EINVAL, bv_dereg_mr(node->device, mr));
    }
    /* The number of an object with one bit more. */
    qp = node->qp;
    qp.number |= 1ull << 55;
    RESULT(node, -BV_EINVAL, reset_qp(node, qp));

    /* Each table to its end, and what is destroyed makes room. */
    for (i = 0; i + 1 < BV_MAX_PD; i++)
        OK(node, bv_alloc_pd(node->device, &pds[i]));
    pd.number = 123;
    RESULT(node, -BV_ENOMEM, bv_alloc_pd(node->device, &pd));
    CHECK(pd.number == 123);
    OK(node, bv_dealloc_pd(node->device, pds[0]));
    RESULT(node, -BV_EINVAL, bv_dealloc_pd(node->device, pds[0]));
    OK(node, bv_alloc_pd(node->device, &pd));
    RESULT(node, -BV_EINVAL, bv_dealloc_pd(node->device, pds[0]));
    RESULT(node, -BV_EBUSY, bv_dealloc_pd(node->device, node->pd));
    for (i = 0; i + 1 < BV_MAX_MR; i++)
        OK(node, bv_reg_mr(node->device, pd, node->bytes, 64, 0, &mrs[i]));
    RESULT(node, -BV_ENOMEM, bv_reg_mr(node->device, pd, node->bytes, 64, 0, &mr));
    for (i = 0; i + 1 < BV_MAX_MR; i++)
        OK(node, bv_dereg_mr(node->device, mrs[i]));
    RESULT(node, -BV_EINVAL, bv_dereg_mr(node->device, mrs[3]));
    for (i = 0; i + 1 < BV_MAX_CQ; i++)
        OK(node, bv_create_cq(node->device, 16, &cqs[i]));
    RESULT(node, -BV_ENOMEM, bv_create_cq(node->device, 16, &cq));
    RESULT(node, -BV_EINVAL, bv_create_cq(node->device, 0, &cq));
    RESULT(node, -BV_EBUSY, bv_destroy_cq(node->device, node->cq));
    RESULT(node, 0, bv_poll_cq(node->device, node->cq, &wc, 1));
    init = qp_init_of(node);
    for (i = 0; i + 1 < BV_MAX_QP; i++)
        OK(node, bv_create_qp(node->device, &init, &qps[i]));
    RESULT(node, -BV_ENOMEM, bv_create_qp(node->device, &init, &qp));
    stale = qps[2];
    for (i = 0; i + 1 < BV_MAX_QP; i++)
        OK(node, bv_destroy_qp(node->device, qps[i]));
    RESULT(node, -BV_EINVAL, bv_destroy_qp(node->device, stale));
    CHECK(says(node, "names no queue pair"));
    /* The slot has another queue pair by now. */
    RESULT(node, 0, bv_poll_cq(node->device, node->cq, &wc, 1));
    for (i = 0; i + 1 < BV_MAX_QP; i++)
        OK(node, bv_create_qp(node->device, &init, &qps[i]));
    RESULT(node, -BV_EINVAL, bv_destroy_qp(node->device, stale));
    RESULT(node, -BV_EINVAL, bv_post_send(node->device, stale, NULL, 0, NULL));
    for (i = 0; i + 1 < BV_MAX_QP; i++)
        OK(node, bv_destroy_qp(node->device, qps[i]));
    for (i = 0; i + 1 < BV_MAX_CQ; i++)
        OK(node, bv_destroy_cq(node->device, cqs[i]));

    for (i = 1; i + 1 < BV_MAX_PD; i++)
        OK(node, bv_dealloc_pd(node->device, pds[i]));
    OK(node, bv_dealloc_pd(node->device, pd));

    /* Regions. */
    RESULT(node, -BV_EINVAL, bv_reg_mr(node->device, node->pd, node->bytes, 0, 0, &mr));
    RESULT(node, -BV_EINVAL, bv_reg_mr(node->device, node->pd, node->bytes, 64, BV_ACCESS_REMOTE_WRITE, &mr));
    RESULT(node, -BV_EINVAL, bv_reg_mr(node->device, node->pd, node->bytes, 64, 1u << 30, &mr));
    /* Memory that the device does not see: 4096 bytes are there. */
    RESULT(node, -BV_EFAULT, bv_reg_mr(node->device, node->pd, node->bytes, 4097, 0, &mr));
    RESULT(node, -BV_EFAULT, bv_reg_mr(node->device, node->pd, &i, 4, 0, &mr));
    empty_extents = 1;
    RESULT(node, -BV_EFAULT, bv_reg_mr(node->device, node->pd, node->bytes, 64, 0, &mr));
    empty_extents = 0;
    RESULT(node, -BV_EINVAL, bv_reg_mr(node->device, node->pd, node->bytes, SIZE_MAX, 0, &mr));

    /* Queue pairs. */
    init = qp_init_of(node);
    init.qp_type = 4;
    RESULT(node, -BV_EINVAL, bv_create_qp(node->device, &init, &qp));
    init = qp_init_of(node);
    init.sq_sig_all = 2;
    RESULT(node, -BV_EINVAL, bv_create_qp(node->device, &init, &qp));
    init = qp_init_of(node);
    init.max_send_sge = 1000000;
    RESULT(node, -BV_EINVAL, bv_create_qp(node->device, &init, &qp));
    init = qp_init_of(node);
    init.max_recv_wr = BV_MAX_RECV + 1;
    RESULT(node, -BV_ENOMEM, bv_create_qp(node->device, &init, &qp));
    CHECK(says(node, "BV_MAX_RECV (") && !says(node, "QpRings"));
    init = qp_init_of(node);
    init.send_cq.number++;
    RESULT(node, -BV_EINVAL, bv_create_qp(node->device, &init, &qp));

    attr = attr_to(node, node);
    attr.path_mtu = 6;
    RESULT(node, -BV_EINVAL, bv_modify_qp_to_rts(node->device, node->qp, &attr));
    attr.path_mtu = 3;
    attr.is_global = 2;
    RESULT(node, -BV_EINVAL, bv_modify_qp_to_rts(node->device, node->qp, &attr));
    CHECK(says(node, "is_global cannot be 2 (0x2)"));
    /* What only the last of the three transitions has is checked before the first. */
    attr = attr_to(node, node);
    attr.retry_cnt = 9;
    RESULT(node, -BV_EINVAL, bv_modify_qp_to_rts(node->device, node->qp, &attr));
    CHECK(says(node, "RETRY_CNT has the value 9"));
    OK(node, bv_query_qp(node->device, node->qp, &info));
    CHECK(info.qp_state == BV_QPS_RESET);
    attr = attr_to(node, node);
    attr.qp_state = 99;
    RESULT(node, -BV_EINVAL, bv_modify_qp(node->device, node->qp, &attr, BV_QP_STATE));
    attr.qp_state = BV_QPS_RTS;
    RESULT(node, -BV_EINVAL, bv_modify_qp(node->device, node->qp, &attr, BV_QP_STATE));
    RESULT(node, -BV_EINVAL, bv_modify_qp(node->device, node->qp, &attr, 1u << 31));
    attr.qp_state = BV_QPS_RESET;
    RESULT(node, -BV_EINVAL, bv_modify_qp(node->device, node->qp, &attr, BV_QP_STATE | BV_QP_PORT));
    /* That of the port, and no others. */
    while (bv_poll_event(node->device, &event) == 1)
        CHECK(event.port == 1);
    RESULT(node, 0, bv_poll_event(node->device, &event));
}

static void requests(struct node *a, struct node *b)
{
    bv_sge sge = sge_of(a, 0, 8), foreign;
    bv_send_wr wr = wr_of(BV_WR_RDMA_WRITE, 1, &sge), wrs[4];
    bv_recv_wr recv;
    bv_pd pd;
    bv_mr mr;
    size_t posted = 9, total = 0;
    int32_t result;
    char text[8];
    int i;

    to_peer(&wr, b, 0);
    memset(&recv, 0, sizeof recv);
    recv.sg_list = &sge;
    recv.num_sge = 1;
    /* In RESET neither a send nor a receive. */
    RESULT(a, -BV_ENOTCONN, bv_post_send(a->device, a->qp, &wr, 1, &posted));
    CHECK(posted == 0);
    RESULT(a, -BV_ENOTCONN, bv_post_recv(a->device, a->qp, &recv, 1, &posted));
    connect_pair(a, b);

    wr.opcode = 77;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(says(a, "opcode cannot be 77 (0x4d)"));
    wr.opcode = BV_WR_RDMA_WRITE;
    wr.send_flags = 0x40;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    wr.send_flags = BV_SEND_SOLICITED;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    /* Inline data and SGEs at once, inline data of a read, and too much of it. */
    wr.send_flags = BV_SEND_INLINE;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    wr.num_sge = 0;
    wr.inline_length = 5;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(says(a, "inline_data is NULL"));
    wr.inline_data = a->bytes;
    wr.opcode = BV_WR_RDMA_READ;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    wr.opcode = BV_WR_RDMA_WRITE;
    wr.inline_length = 4096;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));

    wr = wr_of(BV_WR_RDMA_WRITE, 1, &sge);
    to_peer(&wr, b, 0);
    wr.num_sge = 50;
    wr.sg_list = NULL;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    wr.sg_list = (const bv_sge *)(const void *)(a->bytes + 4);
    wr.num_sge = 1;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(says(a, "sg_list is not aligned"));
    /* Atomics: one SGE of 8 bytes, and an aligned address. */
    wr = wr_of(BV_WR_ATOMIC_FETCH_AND_ADD, 1, NULL);
    to_peer(&wr, b, 0);
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    wr = wr_of(BV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge);
    to_peer(&wr, b, 4);
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));

    /* Keys, ranges, rights, domains. */
    wr = wr_of(BV_WR_RDMA_WRITE, 1, &sge);
    to_peer(&wr, b, 0);
    sge.lkey ^= 0x100;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    sge = sge_of(a, 4092, 8);
    RESULT(a, -BV_ERANGE, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    RESULT(a, -BV_ERANGE, bv_post_recv(a->device, a->qp, &recv, 1, NULL));
    sge = sge_of(a, 0, 8);
    OK(a, bv_alloc_pd(a->device, &pd));
    OK(a, bv_reg_mr(a->device, pd, a->bytes, 64, 0, &mr));
    foreign = sge;
    foreign.lkey = mr.lkey;
    wr.sg_list = &foreign;
    RESULT(a, -BV_EPERM, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    OK(a, bv_dereg_mr(a->device, mr));
    OK(a, bv_reg_mr(a->device, a->pd, a->bytes, 64, 0, &mr));
    foreign.lkey = mr.lkey;
    wr.opcode = BV_WR_RDMA_READ;
    RESULT(a, -BV_EACCES, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    OK(a, bv_dereg_mr(a->device, mr));
    OK(a, bv_dealloc_pd(a->device, pd));

    /* The text is cut to the buffer, and its length is that of the whole. */
    sge.lkey ^= 0x100;
    wr = wr_of(BV_WR_RDMA_WRITE, 1, &sge);
    to_peer(&wr, b, 0);
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    memset(text, 'x', sizeof text);
    CHECK(bv_strerror_detail(a->device, text, 6) > 20);
    CHECK(strlen(text) == 5 && text[6] == 'x');
    sge.lkey ^= 0x100;

    /* A list stops at the first that is refused; those before it are posted and complete. */
    for (i = 0; i < 4; i++) {
        wrs[i] = wr_of(BV_WR_RDMA_WRITE, 50 + (uint64_t)i, &sge);
        to_peer(&wrs[i], b, 0);
    }
    wrs[2].rkey = 0;
    wrs[2].opcode = 77;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, wrs, 4, &posted));
    CHECK(posted == 2);
    CHECK(wait_for(a).wr_id == 50);
    CHECK(wait_for(a).wr_id == 51);
    wrs[2].opcode = BV_WR_RDMA_WRITE;
    wrs[2].send_flags = 0x40;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, a->qp, wrs, 4, &posted));
    CHECK(posted == 2 && says(a, "request 2"));
    CHECK(wait_for(a).wr_id == 50);
    CHECK(wait_for(a).wr_id == 51);

    /* A full queue, and room again after polling. */
    wr = wr_of(BV_WR_RDMA_WRITE, 1, &sge);
    to_peer(&wr, b, 0);
    while ((result = bv_post_send(a->device, a->qp, &wr, 1, NULL)) == 0)
        total++;
    RESULT(a, -BV_ENOSPC, result);
    CHECK(total >= 16 && total <= BV_MAX_SEND_BLOCKS);
    CHECK(wait_for(a).status == BV_WC_SUCCESS);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    for (; total > 0; total--)
        CHECK(wait_for(a).status == BV_WC_SUCCESS);
    while ((result = bv_post_recv(a->device, a->qp, &recv, 1, &posted)) == 0)
        total += posted;
    RESULT(a, -BV_ENOSPC, result);
    CHECK(posted == 0 && total >= 16 && total <= BV_MAX_RECV);
}

int main(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *a = add_node(world, 1), *b = add_node(world, 2);
    bv_port_attr port;
    CHECK(bv_sim_add(world, 1, &a->platform) == NULL);
    storage_and_platform(a);
    host_extent = a->platform.extent;
    a->platform.extent = extent;
    bring_up(a);
    objects(a);
    bring_up(b);
    requests(a, b);

    /* A callback that calls back, and time that runs out. */
    bv_sim_set_link(a->host, 0);
    bv_sim_call_back(a->host, a->device);
    RESULT(a, -BV_ETIMEDOUT, bv_wait_active(a->device, 1, 500, &port));
    CHECK(bv_sim_called_back(a->host) == -BV_EBUSY);
    OK(a, bv_take_down(a->device));
    OK(b, bv_take_down(b->device));
    CHECK(bv_sim_findings(a->host) == 0 && bv_sim_findings(b->host) == 0);
    puts("errors: ok");
    return 0;
}
