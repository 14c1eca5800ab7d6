//! Counters of queue pairs.

crate::layout! {
    /// Input of ALLOC_Q_COUNTER (`mlx5_ifc.h`, `alloc_q_counter_in`).
    AllocQCounterIn "alloc_q_counter_in", 16 bytes, input uid {}
}

crate::layout! {
    /// Output of ALLOC_Q_COUNTER (`mlx5_ifc.h`, `alloc_q_counter_out`).
    AllocQCounterOut "alloc_q_counter_out", 16 bytes, output {
        COUNTER_SET_ID "counter_set_id" (8:7..0);
    }
}

crate::layout! {
    /// Input of DEALLOC_Q_COUNTER (`mlx5_ifc.h`, `dealloc_q_counter_in`).
    DeallocQCounterIn "dealloc_q_counter_in", 16 bytes, input {
        COUNTER_SET_ID "counter_set_id" (8:7..0);
    }
}

crate::layout! {
    /// Output of DEALLOC_Q_COUNTER (`mlx5_ifc.h`, `dealloc_q_counter_out`).
    DeallocQCounterOut "dealloc_q_counter_out", output;
}

crate::layout! {
    /// Input of QUERY_Q_COUNTER (`mlx5_ifc.h`, `query_q_counter_in`).
    QueryQCounterIn "query_q_counter_in", 32 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        CLEAR "clear" (24:31..31);
        AGGREGATE "aggregate" (24:30..30);
        COUNTER_SET_ID "counter_set_id" (28:7..0);
    }
}

crate::layout! {
    /// Output of QUERY_Q_COUNTER (`mlx5_ifc.h`, `query_q_counter_out`).
    QueryQCounterOut "query_q_counter_out", 256 bytes, output {
        RX_WRITE_REQUESTS "rx_write_requests" (16:31..0);
        RX_READ_REQUESTS "rx_read_requests" (24:31..0);
        RX_ATOMIC_REQUESTS "rx_atomic_requests" (32:31..0);
        RX_DCT_CONNECT "rx_dct_connect" (40:31..0);
        OUT_OF_BUFFER "out_of_buffer" (48:31..0);
        OUT_OF_SEQUENCE "out_of_sequence" (56:31..0);
        DUPLICATE_REQUEST "duplicate_request" (64:31..0);
        RNR_NAK_RETRY_ERR "rnr_nak_retry_err" (72:31..0);
        PACKET_SEQ_ERR "packet_seq_err" (80:31..0);
        IMPLIED_NAK_SEQ_ERR "implied_nak_seq_err" (88:31..0);
        LOCAL_ACK_TIMEOUT_ERR "local_ack_timeout_err" (96:31..0);
        REQ_RNR_RETRIES_EXCEEDED "req_rnr_retries_exceeded" (112:31..0);
        RESP_LOCAL_LENGTH_ERROR "resp_local_length_error" (120:31..0);
        REQ_LOCAL_LENGTH_ERROR "req_local_length_error" (124:31..0);
        RESP_LOCAL_QP_ERROR "resp_local_qp_error" (128:31..0);
        LOCAL_OPERATION_ERROR "local_operation_error" (132:31..0);
        RESP_LOCAL_PROTECTION "resp_local_protection" (136:31..0);
        REQ_LOCAL_PROTECTION "req_local_protection" (140:31..0);
        RESP_CQE_ERROR "resp_cqe_error" (144:31..0);
        REQ_CQE_ERROR "req_cqe_error" (148:31..0);
        REQ_MW_BINDING "req_mw_binding" (152:31..0);
        REQ_BAD_RESPONSE "req_bad_response" (156:31..0);
        REQ_REMOTE_INVALID_REQUEST "req_remote_invalid_request" (160:31..0);
        RESP_REMOTE_INVALID_REQUEST "resp_remote_invalid_request" (164:31..0);
        REQ_REMOTE_ACCESS_ERRORS "req_remote_access_errors" (168:31..0);
        RESP_REMOTE_ACCESS_ERRORS "resp_remote_access_errors" (172:31..0);
        REQ_REMOTE_OPERATION_ERRORS "req_remote_operation_errors" (176:31..0);
        REQ_TRANSPORT_RETRIES_EXCEEDED "req_transport_retries_exceeded" (180:31..0);
        CQ_OVERFLOW "cq_overflow" (184:31..0);
        RESP_CQE_FLUSH_ERROR "resp_cqe_flush_error" (188:31..0);
        REQ_CQE_FLUSH_ERROR "req_cqe_flush_error" (192:31..0);
        ROCE_ADP_RETRANS "roce_adp_retrans" (200:31..0);
        ROCE_ADP_RETRANS_TO "roce_adp_retrans_to" (204:31..0);
        ROCE_SLOW_RESTART "roce_slow_restart" (208:31..0);
        ROCE_SLOW_RESTART_CNPS "roce_slow_restart_cnps" (212:31..0);
        ROCE_SLOW_RESTART_TRANS "roce_slow_restart_trans" (216:31..0);
    }
}
