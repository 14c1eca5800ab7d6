/* RDMA between Ethernet ports: GIDs that the program sets, paths with a MAC address, a VLAN, and what is refused. */
#include "check.h"

/* The address that a port has by its MAC address (RFC 4291, appendix A). */
static void link_local(const uint8_t mac[6], uint8_t gid[16])
{
    static const uint8_t prefix[8] = {0xfe, 0x80};
    memcpy(gid, prefix, 8);
    gid[8] = mac[0] ^ 2;
    gid[9] = mac[1];
    gid[10] = mac[2];
    gid[11] = 0xff;
    gid[12] = 0xfe;
    memcpy(gid + 13, mac + 3, 3);
}

/* An address of IPv4, 192.0.2.number, mapped into IPv6. */
static void ipv4(uint8_t number, uint8_t gid[16])
{
    static const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 0};
    memcpy(gid, mapped, 16);
    gid[15] = number;
}

static struct node *add_ethernet_node(bv_sim_world *world, uint16_t number)
{
    struct node *node = new_node();
    uint8_t gid[16], read[16];
    node->host = bv_sim_add_ethernet(world, number, &node->platform);
    CHECK(node->host != NULL);
    bring_up(node);
    CHECK(node->port.link_layer == BV_LINK_LAYER_ETHERNET && node->port.grh_required == 1);
    CHECK(node->port.lid == 0 && (node->port.mac[0] & 1) == 0);
    link_local(node->port.mac, gid);
    OK(node, bv_set_gid(node->device, 1, 0, gid, node->port.mac, 0));
    OK(node, bv_query_gid(node->device, 1, 0, read));
    CHECK(memcmp(gid, read, 16) == 0);
    ipv4((uint8_t)number, gid);
    OK(node, bv_set_gid(node->device, 1, 1, gid, node->port.mac, 7));
    return node;
}

static bv_qp_attr path_to(const struct node *node, const struct node *peer, uint8_t index)
{
    bv_qp_attr attr = attr_to(node, peer);
    CHECK(attr.dlid == 0);
    attr.is_global = 1;
    attr.sgid_index = index;
    attr.hop_limit = 64;
    memcpy(attr.dmac, peer->port.mac, 6);
    return attr;
}

/* Sends each way in turn, and compares what arrives. */
static void ping_pong(struct node *a, struct node *b, int rounds)
{
    struct node *nodes[2] = {a, b};
    int round;
    for (round = 0; round < rounds; round++) {
        struct node *from = nodes[round % 2], *to = nodes[1 - round % 2];
        uint32_t length = 1 + (uint32_t)round * 97 % 2000, at;
        bv_sge out = sge_of(from, 0, length), in = sge_of(to, 2048, 2048);
        bv_send_wr send = wr_of(BV_WR_SEND, (uint64_t)round, &out);
        bv_recv_wr recv;
        bv_wc wc;
        memset(&recv, 0, sizeof recv);
        recv.wr_id = 1000 + (uint64_t)round;
        recv.sg_list = &in;
        recv.num_sge = 1;
        for (at = 0; at < length; at++)
            from->bytes[at] = (uint8_t)(at * 5 + (uint32_t)round);
        memset(to->bytes + 2048, 0xee, 2048);
        OK(to, bv_post_recv(to->device, to->qp, &recv, 1, NULL));
        OK(from, bv_post_send(from->device, from->qp, &send, 1, NULL));
        wc = wait_for(from);
        CHECK(wc.status == BV_WC_SUCCESS && wc.wr_id == (uint64_t)round);
        wc = wait_for(to);
        CHECK(wc.status == BV_WC_SUCCESS && wc.wr_id == 1000 + (uint64_t)round && wc.byte_len == length);
        CHECK(memcmp(to->bytes + 2048, from->bytes, length) == 0 && to->bytes[2048 + length] == 0xee);
    }
}

/* Back to RESET; an empty poll says that no stale completion is left. */
static void reset(struct node *node)
{
    bv_wc wc;
    OK(node, reset_qp(node, node->qp));
    RESULT(node, 0, bv_poll_cq(node->device, node->cq, &wc, 1));
}

/* A write that does not arrive fails after its retries. */
static void lost(struct node *a, struct node *b)
{
    bv_sge sge = sge_of(a, 0, 8);
    bv_send_wr wr = wr_of(BV_WR_RDMA_WRITE, 5, &sge);
    bv_wc wc;
    memset(a->bytes, 0xff, 8);
    memset(b->bytes + 1024, 0, 8);
    to_peer(&wr, b, 1024);
    OK(a, bv_post_send(a->device, a->qp, &wr, 1, NULL));
    wc = wait_for(a);
    CHECK(wc.wr_id == 5 && wc.status != BV_WC_SUCCESS);
    CHECK(b->bytes[1024] == 0);
}

static void connect_by(struct node *a, struct node *b, uint8_t index)
{
    bv_qp_attr attr = path_to(a, b, index);
    if (index == 0)
        link_local(b->port.mac, attr.dgid);
    else
        ipv4(2, attr.dgid);
    OK(a, bv_modify_qp_to_rts(a->device, a->qp, &attr));
    attr = path_to(b, a, index);
    if (index == 0)
        link_local(a->port.mac, attr.dgid);
    else
        ipv4(1, attr.dgid);
    OK(b, bv_modify_qp_to_rts(b->device, b->qp, &attr));
}

static void refusals(struct node *a, struct node *b, bv_sim_world *world)
{
    static const uint8_t zero[16];
    uint8_t gid[16], group[6];
    struct node *infiniband = add_node(world, 3);
    bv_qp_attr attr = path_to(a, b, 0);

    link_local(a->port.mac, gid);
    memcpy(group, a->port.mac, 6);
    group[0] |= 1;
    RESULT(a, -BV_EINVAL, bv_set_gid(a->device, 1, 0, zero, a->port.mac, 0));
    RESULT(a, -BV_EINVAL, bv_set_gid(a->device, 1, 0, gid, zero, 0));
    RESULT(a, -BV_EINVAL, bv_set_gid(a->device, 1, 0, gid, group, 0));
    RESULT(a, -BV_EINVAL, bv_set_gid(a->device, 1, 0, gid, a->port.mac, 4095));
    CHECK(says(a, "4095"));
    RESULT(a, -BV_EINVAL, bv_set_gid(a->device, 2, 0, gid, a->port.mac, 0));
    RESULT(a, -BV_EINVAL, bv_set_gid(a->device, 1, 0, NULL, a->port.mac, 0));
    CHECK(says(a, "gid is NULL"));
    RESULT(a, -BV_EINVAL, bv_set_gid(a->device, 1, 0, gid, NULL, 0));
    CHECK(says(a, "mac is NULL"));
    RESULT(a, -BV_EINVAL, bv_delete_gid(a->device, 2, 0));
    CHECK(bv_set_gid(a->device, 1, 0xffff, gid, a->port.mac, 0) < 0);

    /* A path of the other link layer, both ways round. */
    link_local(b->port.mac, attr.dgid);
    attr.is_global = 0;
    RESULT(a, -BV_EINVAL, bv_modify_qp_to_rts(a->device, a->qp, &attr));
    reset(a);
    attr.is_global = 1;
    memset(attr.dmac, 0, 6);
    RESULT(a, -BV_EINVAL, bv_modify_qp_to_rts(a->device, a->qp, &attr));
    reset(a);
    bring_up(infiniband);
    CHECK(infiniband->port.link_layer == BV_LINK_LAYER_INFINIBAND && memcmp(infiniband->port.mac, zero, 6) == 0);
    RESULT(infiniband, -BV_EOPNOTSUPP, bv_set_gid(infiniband->device, 1, 0, gid, a->port.mac, 0));
    RESULT(infiniband, -BV_EOPNOTSUPP, bv_delete_gid(infiniband->device, 1, 0));
    attr = attr_to(infiniband, infiniband);
    memcpy(attr.dmac, a->port.mac, 6);
    RESULT(infiniband, -BV_EINVAL, bv_modify_qp_to_rts(infiniband->device, infiniband->qp, &attr));
}

int main(void)
{
    bv_sim_world *world = bv_sim_world_new();
    struct node *a = add_ethernet_node(world, 1), *b = add_ethernet_node(world, 2);
    uint8_t gid[16];

    CHECK(memcmp(a->port.mac, b->port.mac, 6) != 0);
    refusals(a, b, world);
    connect_by(a, b, 0);
    ping_pong(a, b, 40);
    /* By IPv4, with a VLAN tag. */
    reset(a);
    reset(b);
    connect_by(a, b, 1);
    ping_pong(a, b, 40);
    CHECK(bv_sim_findings(a->host) == 0 && bv_sim_findings(b->host) == 0);

    /* In another VLAN nothing arrives, and without its entry neither. */
    ipv4(1, gid);
    OK(a, bv_set_gid(a->device, 1, 1, gid, a->port.mac, 8));
    lost(a, b);
    reset(a);
    reset(b);
    OK(a, bv_set_gid(a->device, 1, 1, gid, a->port.mac, 7));
    connect_by(a, b, 1);
    ping_pong(a, b, 2);
    OK(a, bv_delete_gid(a->device, 1, 1));
    lost(a, b);
    OK(a, bv_take_down(a->device));
    OK(b, bv_take_down(b->device));
    puts("ethernet: ok");
    return 0;
}
