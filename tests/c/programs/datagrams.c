/* Datagrams: sends to any port, the source in the completion, answers to it, global routes, Q_Keys, groups, and what is refused. */
#include "check.h"

#define QKEY 0x1357u

/* A queue pair for datagrams in RTS, on the domain and completion queue of a node. */
static bv_qp make_ud(struct node *node, uint32_t qkey)
{
    bv_qp_init init = qp_init_of(node);
    bv_qp_attr attr;
    bv_qp_info info;
    bv_qp qp;
    init.qp_type = 77; /* Ignored. */
    OK(node, bv_create_ud_qp(node->device, &init, &qp));
    memset(&attr, 0, sizeof attr);
    attr.port_num = 1;
    attr.qkey = qkey;
    OK(node, bv_modify_qp_to_rts(node->device, qp, &attr));
    OK(node, bv_query_qp(node->device, qp, &info));
    CHECK(info.qp_state == BV_QPS_RTS && info.qp_num == qp.qp_num);
    return qp;
}

static bv_ah_attr by_lid(const struct node *peer)
{
    bv_ah_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.dlid = peer->port.lid;
    attr.port_num = 1;
    return attr;
}

/* A receive into the bytes from `at` on, with room for a message of 256 bytes. */
static void receive(struct node *node, bv_qp qp, size_t at)
{
    bv_sge sge = sge_of(node, at, BV_GRH_BYTES + 256);
    bv_recv_wr wr;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = at;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    memset(node->bytes + at, 0, sge.length);
    OK(node, bv_post_recv(node->device, qp, &wr, 1, NULL));
}

static bv_send_wr to(bv_ah ah, bv_qp qp, uint32_t qkey, const bv_sge *sge)
{
    bv_send_wr wr = wr_of(BV_WR_SEND, 5, sge);
    wr.ah = ah;
    wr.remote_qpn = qp.qp_num;
    wr.remote_qkey = qkey;
    return wr;
}

static void send(struct node *node, bv_qp qp, const bv_send_wr *wr)
{
    bv_wc wc;
    OK(node, bv_post_send(node->device, qp, wr, 1, NULL));
    wc = wait_for(node);
    CHECK(wc.status == BV_WC_SUCCESS && wc.opcode == BV_WC_SEND && wc.wr_id == 5 && wc.qp == qp.number);
    CHECK(wc.src_qp == 0 && wc.slid == 0 && wc.pkey == 0 && wc.wc_flags == 0);
}

/* Whether nothing comes, whatever time passes. */
static int silent(bv_sim_world *world, struct node *node)
{
    bv_wc wc;
    bv_sim_advance(world, 100000000);
    return bv_poll_cq(node->device, node->cq, &wc, 1) == 0;
}

/* There and back: the answer goes to where the completion says that the question came from. */
static void ask(struct node *a, bv_qp of_a, struct node *b, bv_qp of_b, const bv_ah_attr *path, uint32_t imm)
{
    bv_ah_attr back;
    bv_sge sge = sge_of(a, 0, 100);
    bv_send_wr wr;
    bv_ah ah;
    bv_wc wc;
    int with_imm = imm != 0, ethernet = a->port.link_layer == BV_LINK_LAYER_ETHERNET;
    memset(a->bytes, 0x42, 100);
    receive(b, of_b, 1024);
    OK(a, bv_create_ah(a->device, a->pd, path, &ah));
    wr = to(ah, of_b, QKEY, &sge);
    if (with_imm) {
        wr.opcode = BV_WR_SEND_WITH_IMM;
        wr.imm_data = imm;
    }
    send(a, of_a, &wr);
    /* A request that is posted needs its address no more, and the number is nobody's. */
    OK(a, bv_destroy_ah(a->device, ah));
    RESULT(a, -BV_EINVAL, bv_destroy_ah(a->device, ah));
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, of_a, &wr, 1, NULL));
    CHECK(says(a, "no address handle"));

    wc = wait_for(b);
    CHECK(wc.status == BV_WC_SUCCESS && wc.opcode == BV_WC_RECV && wc.wr_id == 1024 && wc.qp == of_b.number);
    CHECK(wc.byte_len == BV_GRH_BYTES + 100 && memcmp(b->bytes + 1024 + BV_GRH_BYTES, a->bytes, 100) == 0);
    CHECK(b->bytes[1024 + BV_GRH_BYTES + 100] == 0);
    CHECK(wc.src_qp == of_a.qp_num && wc.slid == a->port.lid && wc.sl == path->sl && wc.dlid_path_bits == 0);
    CHECK(wc.wc_flags == (uint32_t)((with_imm ? BV_WC_WITH_IMM : 0) | (path->is_global ? BV_WC_GRH : 0)));
    CHECK(wc.imm_data == imm && wc.pkey == (with_imm ? 0 : 0xffff));

    memset(&back, 0xa5, sizeof back);
    CHECK(bv_init_ah_from_wc(1, path->sgid_index, &wc, b->bytes + 1024, &back) == 0);
    CHECK(back.dlid == a->port.lid && back.port_num == 1 && back.sl == path->sl && back.is_global == path->is_global);
    if (ethernet)
        memcpy(back.dmac, a->port.mac, 6);
    OK(b, bv_create_ah(b->device, b->pd, &back, &ah));
    receive(a, of_a, 2048);
    sge = sge_of(b, 1024 + BV_GRH_BYTES, 100);
    wr = to(ah, of_a, QKEY, &sge);
    wr.remote_qpn = wc.src_qp;
    send(b, of_b, &wr);
    wc = wait_for(a);
    CHECK(wc.status == BV_WC_SUCCESS && wc.src_qp == of_b.qp_num && wc.slid == b->port.lid);
    CHECK(wc.byte_len == BV_GRH_BYTES + 100 && memcmp(a->bytes + 2048 + BV_GRH_BYTES, a->bytes, 100) == 0);
    OK(b, bv_destroy_ah(b->device, ah));
}

/* A group: each queue pair in it gets a copy. */
static void group(bv_sim_world *world, struct node *a, bv_qp of_a, struct node *b, bv_qp of_b)
{
    static const uint8_t gid[16] = {0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7};
    static const uint8_t nobody[16] = {0xfe, 0x80};
    bv_ah_attr path;
    bv_send_wr wr = wr_of(BV_WR_SEND, 5, NULL);
    bv_wc wc;
    memset(&path, 0, sizeof path);
    path.dlid = 0xc007;
    path.port_num = path.is_global = 1;
    memcpy(path.dgid, gid, 16);
    OK(a, bv_create_ah(a->device, a->pd, &path, &wr.ah));
    wr.send_flags = BV_SEND_INLINE;
    wr.inline_data = "to all";
    wr.inline_length = 6;
    wr.remote_qpn = BV_MULTICAST_QPN;
    wr.remote_qkey = QKEY;
    receive(b, of_b, 0);
    send(a, of_a, &wr);
    CHECK(silent(world, b));
    RESULT(b, -BV_EINVAL, bv_attach_mcast(b->device, of_b, nobody));
    RESULT(b, -BV_EINVAL, bv_attach_mcast(b->device, b->qp, gid));
    CHECK(says(b, "only datagrams"));
    OK(b, bv_attach_mcast(b->device, of_b, gid));
    OK(b, bv_attach_mcast(b->device, of_b, gid));
    send(a, of_a, &wr);
    wc = wait_for(b);
    CHECK(wc.wr_id == 0 && wc.wc_flags == BV_WC_GRH && wc.byte_len == BV_GRH_BYTES + 6);
    CHECK(memcmp(b->bytes + BV_GRH_BYTES, "to all", 6) == 0 && memcmp(b->bytes + 24, gid, 16) == 0);
    RESULT(b, -BV_EBUSY, bv_destroy_qp(b->device, of_b));
    RESULT(b, -BV_EINVAL, bv_detach_mcast(b->device, of_b, nobody));
    OK(b, bv_detach_mcast(b->device, of_b, gid));
    RESULT(b, -BV_EINVAL, bv_detach_mcast(b->device, of_b, gid));
    receive(b, of_b, 0);
    send(a, of_a, &wr);
    CHECK(silent(world, b));
    OK(a, bv_destroy_ah(a->device, wr.ah));
}

/* What is refused is named, and nothing is sent. */
static void refuse(struct node *a, bv_qp of_a, struct node *b, bv_qp of_b)
{
    bv_ah_attr path = by_lid(b);
    bv_ah ahs[BV_MAX_AH], more, foreign, none;
    bv_sge sge = sge_of(a, 0, 64), longer[2] = {sge_of(a, 0, 4096), sge_of(a, 0, 1)};
    bv_send_wr wr;
    bv_pd other;
    bv_wc wc;
    bv_ah_attr attr;
    size_t i, posted;
    memset(&none, 0, sizeof none);
    for (i = 0; i < BV_MAX_AH; i++) {
        OK(a, bv_create_ah(a->device, a->pd, &path, &ahs[i]));
        CHECK(ahs[i].number != 0 && (i == 0 || ahs[i].number != ahs[i - 1].number));
    }
    RESULT(a, -BV_ENOMEM, bv_create_ah(a->device, a->pd, &path, &more));
    CHECK(says(a, "64 address handles"));
    for (i = 1; i < BV_MAX_AH; i++)
        OK(a, bv_destroy_ah(a->device, ahs[i]));
    path.sl = 16;
    RESULT(a, -BV_EINVAL, bv_create_ah(a->device, a->pd, &path, &more));
    CHECK(says(a, "sl of the address is 16"));
    path = by_lid(b);
    path.is_global = 2;
    RESULT(a, -BV_EINVAL, bv_create_ah(a->device, a->pd, &path, &more));
    path = by_lid(b);
    path.port_num = 0;
    RESULT(a, -BV_EINVAL, bv_create_ah(a->device, a->pd, &path, &more));
    path = by_lid(b);
    RESULT(a, -BV_EINVAL, bv_create_ah(a->device, a->pd, NULL, &more));
    RESULT(a, -BV_EINVAL, bv_create_ah(a->device, a->pd, &path, NULL));
    OK(a, bv_alloc_pd(a->device, &other));
    OK(a, bv_create_ah(a->device, other, &path, &foreign));
    OK(a, bv_dealloc_pd(a->device, other));
    RESULT(a, -BV_EINVAL, bv_create_ah(a->device, other, &path, &more));

    wr = to(none, of_b, QKEY, &sge);
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, of_a, &wr, 1, NULL));
    wr.ah.number = UINT64_MAX;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, of_a, &wr, 1, NULL));
    wr.ah = foreign;
    RESULT(a, -BV_EPERM, bv_post_send(a->device, of_a, &wr, 1, NULL));
    /* A byte more than the port's MTU. */
    wr = to(ahs[0], of_b, QKEY, longer);
    wr.num_sge = 2;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, of_a, &wr, 1, &posted));
    CHECK(posted == 0 && says(a, "the maximum message has"));
    wr = to(ahs[0], of_b, QKEY, &sge);
    wr.opcode = BV_WR_RDMA_WRITE;
    to_peer(&wr, b, 0);
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, of_a, &wr, 1, NULL));
    CHECK(says(a, "opcode"));
    wr = to(ahs[0], of_b, QKEY, &sge);
    wr.remote_qpn = 1u << 24;
    RESULT(a, -BV_EINVAL, bv_post_send(a->device, of_a, &wr, 1, NULL));

    memset(&wc, 0, sizeof wc);
    CHECK(bv_init_ah_from_wc(1, 0, NULL, NULL, &attr) == -BV_EINVAL && bv_init_ah_from_wc(1, 0, &wc, NULL, NULL) == -BV_EINVAL);
    CHECK(bv_init_ah_from_wc(1, 0, &wc, NULL, &attr) == 0 && attr.is_global == 0);
    wc.wc_flags = BV_WC_GRH;
    CHECK(bv_init_ah_from_wc(1, 0, &wc, NULL, &attr) == -BV_EINVAL);
    OK(a, bv_destroy_ah(a->device, foreign));
    OK(a, bv_destroy_ah(a->device, ahs[0]));
}

/* On Ethernet ports: an address is a GID and a MAC address, and a receive begins with the IP header. */
static void ethernet(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *nodes[2];
    uint8_t gids[2][16];
    bv_ah_attr path;
    bv_qp qps[2];
    int i;
    for (i = 0; i < 2; i++) {
        static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        uint8_t address[4] = {192, 0, 2, 0};
        nodes[i] = new_node();
        nodes[i]->host = bv_sim_add_ethernet(world, (uint16_t)(i + 1), &nodes[i]->platform);
        CHECK(nodes[i]->host != NULL);
        bring_up(nodes[i]);
        address[3] = (uint8_t)(i + 1);
        memcpy(gids[i], mapped, 12);
        memcpy(gids[i] + 12, address, 4);
        OK(nodes[i], bv_set_gid(nodes[i]->device, 1, 0, gids[i], nodes[i]->port.mac, 0));
        qps[i] = make_ud(nodes[i], QKEY);
    }
    memset(&path, 0, sizeof path);
    path.port_num = path.is_global = 1;
    path.hop_limit = 64;
    memcpy(path.dgid, gids[1], 16);
    memcpy(path.dmac, nodes[1]->port.mac, 6);
    ask(nodes[0], qps[0], nodes[1], qps[1], &path, 0);
    /* From 192.0.2.1 to 192.0.2.2, in the header of the question. */
    CHECK(memcmp(nodes[1]->bytes + 1024 + 32, gids[0] + 12, 4) == 0 && memcmp(nodes[1]->bytes + 1024 + 36, gids[1] + 12, 4) == 0);
    path.is_global = 0;
    RESULT(nodes[0], -BV_EINVAL, bv_create_ah(nodes[0]->device, nodes[0]->pd, &path, &(bv_ah){0}));
    CHECK(bv_sim_findings(nodes[0]->host) == 0 && bv_sim_findings(nodes[1]->host) == 0);
}

int main(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *a = add_node(world, 1), *b = add_node(world, 2);
    bv_qp of_a, of_b;
    bv_ah_attr path;
    bv_ah ah;
    bv_sge sge;
    bv_send_wr wr;
    bv_wc wc;

    bring_up(a);
    bring_up(b);
    of_a = make_ud(a, QKEY);
    of_b = make_ud(b, QKEY);
    path = by_lid(b);
    ask(a, of_a, b, of_b, &path, 0);
    path.sl = 3;
    ask(a, of_a, b, of_b, &path, 0x12345678);
    /* With a global route, whose header is in front of the message: the GIDs of both. */
    path.is_global = 1;
    path.hop_limit = 5;
    OK(b, bv_query_gid(b->device, 1, 0, path.dgid));
    ask(a, of_a, b, of_b, &path, 0);
    CHECK(memcmp(b->bytes + 1024 + 24, path.dgid, 16) == 0);
    OK(a, bv_query_gid(a->device, 1, 0, path.dgid));
    CHECK(memcmp(b->bytes + 1024 + 8, path.dgid, 16) == 0 && b->bytes[1024 + 7] == 5);
    refuse(a, of_a, b, of_b);
    group(world, a, of_a, b, of_b);

    /* A datagram with another Q_Key left, and does not arrive. */
    path = by_lid(b);
    OK(a, bv_create_ah(a->device, a->pd, &path, &ah));
    sge = sge_of(a, 0, 8);
    wr = to(ah, of_b, QKEY + 1, &sge);
    send(a, of_a, &wr);
    CHECK(silent(world, b));
    /* The highest bit: that of the sender's queue pair. */
    wr.remote_qkey = 0x80000000u;
    send(a, of_a, &wr);
    CHECK(wait_for(b).src_qp == of_a.qp_num);

    /* A connection beside them has no source, and ignores what names a destination. */
    connect_pair(a, b);
    receive(b, b->qp, 512);
    wr = wr_of(BV_WR_SEND, 6, &sge);
    wr.ah.number = UINT64_MAX;
    wr.remote_qpn = wr.remote_qkey = UINT32_MAX;
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    CHECK(wait_for(a).wr_id == 6);
    wc = wait_for(b);
    CHECK(wc.wr_id == 512 && wc.byte_len == 8 && wc.qp == b->qp.number && wc.src_qp == 0 && wc.slid == 0 && wc.pkey == 0);
    CHECK(bv_sim_findings(a->host) == 0 && bv_sim_findings(b->host) == 0);

    /* Back to RESET and up again. What is left goes with the device. */
    OK(b, reset_qp(b, of_b));
    OK(b, bv_destroy_qp(b->device, of_b));
    RESULT(b, -BV_EINVAL, bv_destroy_qp(b->device, of_b));
    OK(a, bv_take_down(a->device));
    RESULT(a, -BV_ENODEV, bv_destroy_ah(a->device, ah));
    OK(a, bv_bring_up(a->device, &a->platform, NULL));
    RESULT(a, -BV_EINVAL, bv_destroy_ah(a->device, ah));
    OK(a, bv_take_down(a->device));
    OK(b, bv_take_down(b->device));
    ethernet();
    puts("datagrams: ok");
    return 0;
}
