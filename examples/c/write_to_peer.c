/* Two hosts of one process: one writes into the memory of the other. On hardware the part that makes the hosts is another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bareverbs_sim.h"

/* Storage of a device: 64 KiB, wherever the program wants it. */
static _Alignas(BV_STORAGE_ALIGN) unsigned char storage[2][BV_STORAGE_SIZE];

struct node {
    bv_device *device;
    bv_platform platform;
    bv_port_attr port;
    bv_pd pd;
    bv_cq cq;
    bv_qp qp;
};

/* Ends the program with the text of an error. */
static void check(struct node *node, const char *what, int32_t result)
{
    char text[200];
    if (result >= 0)
        return;
    bv_strerror_detail(node->device, text, sizeof text);
    fprintf(stderr, "%s: errno %d, %s\n", what, -result, text);
    exit(1);
}

/* Brings a device up and makes a queue pair on it. */
static void start(struct node *node, unsigned char *place)
{
    bv_qp_init init = {0};
    check(node, "init", bv_init(place, BV_STORAGE_SIZE, &node->device));
    check(node, "bring up", bv_bring_up(node->device, &node->platform, NULL));
    check(node, "wait for the port", bv_wait_active(node->device, 1, 60000, &node->port));
    check(node, "alloc PD", bv_alloc_pd(node->device, &node->pd));
    /* Room for every request that the rings admit. */
    check(node, "create CQ", bv_create_cq(node->device, BV_MAX_SEND_BLOCKS + BV_MAX_RECV, &node->cq));
    init.pd = node->pd;
    init.send_cq = init.recv_cq = node->cq;
    init.qp_type = BV_QPT_RC;
    init.sq_sig_all = 1;
    init.max_send_wr = init.max_recv_wr = 16;
    init.max_send_sge = init.max_recv_sge = 1;
    check(node, "create QP", bv_create_qp(node->device, &init, &node->qp));
}

/* Connects a queue pair. LID and number of the peer's come over some other connection. */
static void connect_to(struct node *node, uint16_t lid, uint32_t qp_num)
{
    bv_qp_attr attr = {0};
    attr.access = BV_ACCESS_REMOTE_WRITE;
    attr.dest_qp_num = qp_num;
    attr.path_mtu = node->port.active_mtu;
    attr.port_num = 1;
    attr.dlid = lid;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    check(node, "modify_qp_to_rts", bv_modify_qp_to_rts(node->device, node->qp, &attr));
}

int main(void)
{
    static const char message[] = "hello from C";
    struct node a = {0}, b = {0};
    bv_sim_world *world = bv_sim_world_new();
    bv_sim_host *host_a = bv_sim_add(world, 1, &a.platform);
    bv_sim_host *host_b = bv_sim_add(world, 2, &b.platform);
    char *source, *target;
    bv_mr source_mr, target_mr;
    bv_send_wr wr = {0};
    bv_sge sge;
    bv_wc wc;
    int32_t count;

    start(&a, storage[0]);
    start(&b, storage[1]);
    connect_to(&a, b.port.lid, b.qp.qp_num);
    connect_to(&b, a.port.lid, a.qp.qp_num);

    /* Memory that the devices see: on hardware a static buffer may be that. */
    source = bv_sim_alloc(host_a, 4096, NULL);
    target = bv_sim_alloc(host_b, 4096, NULL);
    check(&a, "register", bv_reg_mr(a.device, a.pd, source, 4096, 0, &source_mr));
    check(&b, "register", bv_reg_mr(b.device, b.pd, target, 4096, BV_ACCESS_LOCAL_WRITE | BV_ACCESS_REMOTE_WRITE, &target_mr));

    memcpy(source, message, sizeof message);
    sge.addr = (uintptr_t)source;
    sge.length = sizeof message;
    sge.lkey = source_mr.lkey;
    wr.wr_id = 1;
    wr.opcode = BV_WR_RDMA_WRITE;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.remote_addr = (uintptr_t)target;
    wr.rkey = target_mr.rkey;
    check(&a, "post", bv_post_send(a.device, a.qp, &wr, 1, NULL));

    while ((count = bv_poll_cq(a.device, a.cq, &wc, 1)) == 0)
        a.platform.wait(a.platform.context, 0); /* simulated time passes here; on hardware there is nothing to do */
    check(&a, "poll", count);
    if (wc.status != BV_WC_SUCCESS) {
        fprintf(stderr, "the write failed: status %u\n", (unsigned)wc.status);
        return 1;
    }
    printf("LID %u has: %s\n", (unsigned)b.port.lid, target);

    check(&a, "take down", bv_take_down(a.device));
    check(&b, "take down", bv_take_down(b.device));
    return 0;
}
