/* Checks of the test programs, and two hosts that are connected. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bareverbs_sim.h"

#define CHECK(what)                                                              \
    do {                                                                         \
        if (!(what)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);   \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

/* The result of a call, which is shown with its text if it is another one. */
#define RESULT(node, expected, call)                                                                          \
    do {                                                                                                      \
        int32_t result_ = (call);                                                                             \
        if (result_ != (expected)) {                                                                          \
            char text_[300];                                                                                  \
            bv_strerror_detail((node)->device, text_, sizeof text_);                                          \
            fprintf(stderr, "%s:%d: %s is %d, not %d: %s\n", __FILE__, __LINE__, #call, result_, (int)(expected), text_); \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

#define OK(node, call) RESULT(node, 0, call)

union storage {
    _Alignas(BV_STORAGE_ALIGN) unsigned char bytes[BV_STORAGE_SIZE];
};

struct node {
    bv_sim_host *host;
    bv_device *device;
    bv_platform platform;
    bv_port_attr port;
    bv_pd pd;
    bv_cq cq;
    bv_qp qp;
    /* A page that may be used in every way. */
    uint8_t *bytes;
    bv_mr mr;
    union storage storage;
};

#define EVERY_ACCESS \
    (BV_ACCESS_LOCAL_WRITE | BV_ACCESS_REMOTE_WRITE | BV_ACCESS_REMOTE_READ | BV_ACCESS_REMOTE_ATOMIC)

static inline bv_qp_init qp_init_of(const struct node *node)
{
    bv_qp_init init;
    memset(&init, 0, sizeof init);
    init.pd = node->pd;
    init.send_cq = init.recv_cq = node->cq;
    init.qp_type = BV_QPT_RC;
    init.sq_sig_all = 1;
    init.max_send_wr = init.max_recv_wr = 16;
    init.max_send_sge = init.max_recv_sge = 2;
    init.max_inline_data = 16;
    return init;
}

static inline bv_recv_wr recv_of(uint64_t wr_id, const bv_sge *sge)
{
    bv_recv_wr wr;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    return wr;
}

static inline bv_qp_attr attr_to(const struct node *node, const struct node *peer)
{
    bv_qp_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.access = BV_ACCESS_REMOTE_WRITE | BV_ACCESS_REMOTE_READ | BV_ACCESS_REMOTE_ATOMIC;
    attr.dest_qp_num = peer->qp.qp_num;
    attr.path_mtu = node->port.active_mtu;
    attr.port_num = 1;
    attr.dlid = peer->port.lid;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
    attr.rq_psn = peer->port.lid * 0x1000u;
    attr.sq_psn = node->port.lid * 0x1000u;
    return attr;
}

/* Brings a device up, with everything for one queue pair. */
static inline void bring_up(struct node *node)
{
    bv_qp_init init;
    OK(node, bv_init(&node->storage, sizeof node->storage, &node->device));
    OK(node, bv_bring_up(node->device, &node->platform, NULL));
    OK(node, bv_wait_active(node->device, 1, 60000, &node->port));
    OK(node, bv_alloc_pd(node->device, &node->pd));
    OK(node, bv_create_cq(node->device, BV_MAX_SEND_BLOCKS + BV_MAX_RECV, &node->cq));
    CHECK(node->cq.cqe >= BV_MAX_SEND_BLOCKS + BV_MAX_RECV);
    init = qp_init_of(node);
    OK(node, bv_create_qp(node->device, &init, &node->qp));
    node->bytes = (uint8_t *)bv_sim_alloc(node->host, 4096, NULL);
    OK(node, bv_reg_mr(node->device, node->pd, node->bytes, 4096, EVERY_ACCESS, &node->mr));
}

static inline struct node *new_node(void)
{
    struct node *node = (struct node *)aligned_alloc(BV_STORAGE_ALIGN, sizeof *node);
    CHECK(node != NULL);
    memset(node, 0, sizeof *node);
    return node;
}

static inline struct node *add_node(bv_sim_world *world, uint16_t lid)
{
    struct node *node = new_node();
    node->host = bv_sim_add(world, lid, &node->platform);
    CHECK(node->host != NULL);
    return node;
}

static inline void connect_pair(struct node *a, struct node *b)
{
    bv_qp_attr attr = attr_to(a, b);
    OK(a, bv_modify_qp_to_rts(a->device, a->qp, &attr));
    attr = attr_to(b, a);
    OK(b, bv_modify_qp_to_rts(b->device, b->qp, &attr));
}

/* Takes a queue pair to RESET, and returns what the call does. */
static inline int32_t reset_qp(const struct node *node, bv_qp qp)
{
    bv_qp_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.qp_state = BV_QPS_RESET;
    return bv_modify_qp(node->device, qp, &attr, BV_QP_STATE);
}

/* Waits for one completion, for ten seconds of simulated time at most. */
static inline bv_wc wait_for(struct node *node)
{
    bv_wc wc[2];
    uint64_t end = node->platform.now(node->platform.context) + 10000000000u;
    for (;;) {
        int32_t count;
        memset(wc, 0xa5, sizeof wc);
        count = bv_poll_cq(node->device, node->cq, wc, 1);
        if (count == 1) {
            unsigned char after[sizeof wc[1]];
            memset(after, 0xa5, sizeof after);
            CHECK(memcmp(&wc[1], after, sizeof after) == 0);
            return wc[0];
        }
        RESULT(node, 0, count);
        CHECK(node->platform.now(node->platform.context) < end);
        node->platform.wait(node->platform.context, end);
    }
}

static inline bv_sge sge_of(const struct node *node, size_t at, uint32_t length)
{
    bv_sge sge;
    sge.addr = (uintptr_t)(node->bytes + at);
    sge.length = length;
    sge.lkey = node->mr.lkey;
    return sge;
}

static inline bv_send_wr wr_of(uint32_t opcode, uint64_t wr_id, const bv_sge *sge)
{
    bv_send_wr wr;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.sg_list = sge;
    wr.num_sge = sge != NULL;
    return wr;
}

static inline void to_peer(bv_send_wr *wr, const struct node *peer, size_t at)
{
    wr->remote_addr = (uintptr_t)(peer->bytes + at);
    wr->rkey = peer->mr.rkey;
}

/* Whether the text of the last error has this in it. */
static inline int says(struct node *node, const char *part)
{
    char text[300];
    size_t length = bv_strerror_detail(node->device, text, sizeof text);
    if (length == strlen(text) && strstr(text, part) != NULL)
        return 1;
    fprintf(stderr, "the text is: %s\n", text);
    return 0;
}

#endif
