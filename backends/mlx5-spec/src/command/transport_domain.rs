//! Transport domains.

crate::layout! {
    /// Input of ALLOC_TRANSPORT_DOMAIN (`mlx5_ifc.h`, `alloc_transport_domain_in`).
    AllocTransportDomainIn "alloc_transport_domain_in", 16 bytes, input uid {}
}

crate::layout! {
    /// Output of ALLOC_TRANSPORT_DOMAIN (`mlx5_ifc.h`, `alloc_transport_domain_out`).
    AllocTransportDomainOut "alloc_transport_domain_out", 16 bytes, output {
        TRANSPORT_DOMAIN "transport_domain" (8:23..0);
    }
}

crate::layout! {
    /// Input of DEALLOC_TRANSPORT_DOMAIN (`mlx5_ifc.h`, `dealloc_transport_domain_in`).
    DeallocTransportDomainIn "dealloc_transport_domain_in", 16 bytes, input uid {
        TRANSPORT_DOMAIN "transport_domain" (8:23..0);
    }
}

crate::layout! {
    /// Output of DEALLOC_TRANSPORT_DOMAIN (`mlx5_ifc.h`, `dealloc_transport_domain_out`).
    DeallocTransportDomainOut "dealloc_transport_domain_out", output;
}
