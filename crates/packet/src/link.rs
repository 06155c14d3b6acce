//! Link types, numbered as in capture files (the tcpdump group's LINKTYPE registry).

/// What a frame of a capture or an interface begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: a 4-byte address family in the byte order of the capturing host.
    pub const NULL: Self = Self(0);
    /// Ethernet II.
    pub const ETHERNET: Self = Self(1);
    /// PPP, framed as HDLC is, or not.
    pub const PPP: Self = Self(9);
    /// Raw IP, the number some systems write for DLT_RAW.
    pub const RAW_BSD: Self = Self(12);
    /// Raw IP, the number OpenBSD writes for DLT_RAW.
    pub const RAW_OPENBSD: Self = Self(14);
    /// PPP framed as HDLC is, or Cisco's HDLC.
    pub const PPP_HDLC: Self = Self(50);
    /// PPPoE, from its own header on.
    pub const PPP_ETHER: Self = Self(51);
    /// Raw IP; the first nibble says which version.
    pub const RAW: Self = Self(101);
    /// Cisco's HDLC.
    pub const C_HDLC: Self = Self(104);
    /// IEEE 802.11.
    pub const IEEE802_11: Self = Self(105);
    /// Frame Relay.
    pub const FRELAY: Self = Self(107);
    /// OpenBSD loopback: a 4-byte address family in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture.
    pub const SLL: Self = Self(113);
    /// The log of OpenBSD's packet filter.
    pub const PFLOG: Self = Self(117);
    /// IEEE 802.11 behind the header of Prism's drivers.
    pub const IEEE802_11_PRISM: Self = Self(119);
    /// IEEE 802.11 behind a radiotap header.
    pub const IEEE802_11_RADIOTAP: Self = Self(127);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// The log of Linux' netfilter.
    pub const NFLOG: Self = Self(239);
    /// Linux "cooked" capture, version 2.
    pub const SLL2: Self = Self(276);
    /// No link type: the frame names an interface that its capture does not describe. Such a frame counts as
    /// [`Reject::UndefinedInterface`](crate::Reject::UndefinedInterface). No capture can name it: see
    /// [`LinkType::of_number`].
    pub const NONE: Self = Self(u16::MAX);

    /// The link types whose frames can be parsed.
    pub const SUPPORTED: [Self; 20] = [
        Self::NULL,
        Self::ETHERNET,
        Self::PPP,
        Self::RAW_BSD,
        Self::RAW_OPENBSD,
        Self::PPP_HDLC,
        Self::PPP_ETHER,
        Self::RAW,
        Self::C_HDLC,
        Self::IEEE802_11,
        Self::FRELAY,
        Self::LOOP,
        Self::SLL,
        Self::PFLOG,
        Self::IEEE802_11_PRISM,
        Self::IEEE802_11_RADIOTAP,
        Self::IPV4,
        Self::IPV6,
        Self::NFLOG,
        Self::SLL2,
    ];

    /// Those whose headers kernels do not know: software looks at their frames.
    pub(crate) const BEYOND_KERNELS: [Self; 10] = [
        Self::PPP,
        Self::PPP_HDLC,
        Self::PPP_ETHER,
        Self::C_HDLC,
        Self::IEEE802_11,
        Self::FRELAY,
        Self::PFLOG,
        Self::IEEE802_11_PRISM,
        Self::IEEE802_11_RADIOTAP,
        Self::NFLOG,
    ];

    /// The link type with a number that stands in a capture. 65,535 and larger numbers, which are unassigned, become
    /// 65,534: 65,535 is [`LinkType::NONE`].
    pub fn of_number(number: u32) -> Self {
        Self(u16::try_from(number).unwrap_or(u16::MAX).min(u16::MAX - 1))
    }

    /// Whether frames of this type can be parsed.
    pub fn is_supported(self) -> bool {
        Self::SUPPORTED.contains(&self)
    }

    /// Whether its headers are among those that only the walk over other framings steps over.
    pub(crate) fn is_beyond_kernels(self) -> bool {
        Self::BEYOND_KERNELS.contains(&self)
    }

    /// Its name in the registry without `LINKTYPE_`, for the common ones.
    pub fn name(self) -> Option<&'static str> {
        NAMES.binary_search_by_key(&self.0, |&(number, _)| number).ok().map(|index| NAMES[index].1)
    }
}

/// Numbers with names, in order.
const NAMES: &[(u16, &str)] = &[
    (0, "NULL"),
    (1, "ETHERNET"),
    (3, "AX25"),
    (6, "IEEE802_5"),
    (7, "ARCNET_BSD"),
    (8, "SLIP"),
    (9, "PPP"),
    (10, "FDDI"),
    (12, "RAW"),
    (14, "RAW"),
    (50, "PPP_HDLC"),
    (51, "PPP_ETHER"),
    (99, "SYMANTEC_FIREWALL"),
    (100, "ATM_RFC1483"),
    (101, "RAW"),
    (104, "C_HDLC"),
    (105, "IEEE802_11"),
    (106, "ATM_CLIP"),
    (107, "FRELAY"),
    (108, "LOOP"),
    (109, "ENC"),
    (112, "CISCO_HDLC"),
    (113, "LINUX_SLL"),
    (114, "LTALK"),
    (117, "PFLOG"),
    (119, "IEEE802_11_PRISM"),
    (122, "IP_OVER_FC"),
    (123, "SUNATM"),
    (127, "IEEE802_11_RADIOTAP"),
    (129, "ARCNET_LINUX"),
    (138, "APPLE_IP_OVER_IEEE1394"),
    (139, "MTP2_WITH_PHDR"),
    (140, "MTP2"),
    (141, "MTP3"),
    (142, "SCCP"),
    (143, "DOCSIS"),
    (144, "LINUX_IRDA"),
    (147, "USER0"),
    (148, "USER1"),
    (149, "USER2"),
    (150, "USER3"),
    (151, "USER4"),
    (152, "USER5"),
    (153, "USER6"),
    (154, "USER7"),
    (155, "USER8"),
    (156, "USER9"),
    (157, "USER10"),
    (158, "USER11"),
    (159, "USER12"),
    (160, "USER13"),
    (161, "USER14"),
    (162, "USER15"),
    (163, "IEEE802_11_AVS"),
    (165, "BACNET_MS_TP"),
    (166, "PPP_PPPD"),
    (169, "GPRS_LLC"),
    (170, "GPF_T"),
    (171, "GPF_F"),
    (177, "LINUX_LAPD"),
    (182, "MFR"),
    (187, "BLUETOOTH_HCI_H4"),
    (189, "USB_LINUX"),
    (192, "PPI"),
    (195, "IEEE802_15_4_WITHFCS"),
    (196, "SITA"),
    (197, "ERF"),
    (201, "BLUETOOTH_HCI_H4_WITH_PHDR"),
    (202, "AX25_KISS"),
    (203, "LAPD"),
    (204, "PPP_WITH_DIR"),
    (205, "C_HDLC_WITH_DIR"),
    (206, "FRELAY_WITH_DIR"),
    (207, "LAPB_WITH_DIR"),
    (209, "IPMB_LINUX"),
    (210, "FLEXRAY"),
    (212, "LIN"),
    (215, "IEEE802_15_4_NONASK_PHY"),
    (220, "USB_LINUX_MMAPPED"),
    (224, "FC_2"),
    (225, "FC_2_WITH_FRAME_DELIMS"),
    (226, "IPNET"),
    (227, "CAN_SOCKETCAN"),
    (228, "IPV4"),
    (229, "IPV6"),
    (230, "IEEE802_15_4_NOFCS"),
    (231, "DBUS"),
    (235, "DVB_CI"),
    (236, "MUX27010"),
    (237, "STANAG_5066_D_PDU"),
    (239, "NFLOG"),
    (240, "NETANALYZER"),
    (241, "NETANALYZER_TRANSPARENT"),
    (242, "IPOIB"),
    (243, "MPEG_2_TS"),
    (244, "NG40"),
    (245, "NFC_LLCP"),
    (247, "INFINIBAND"),
    (248, "SCTP"),
    (249, "USBPCAP"),
    (250, "RTAC_SERIAL"),
    (251, "BLUETOOTH_LE_LL"),
    (253, "NETLINK"),
    (254, "BLUETOOTH_LINUX_MONITOR"),
    (255, "BLUETOOTH_BREDR_BB"),
    (256, "BLUETOOTH_LE_LL_WITH_PHDR"),
    (257, "PROFIBUS_DL"),
    (258, "PKTAP"),
    (259, "EPON"),
    (260, "IPMI_HPM_2"),
    (261, "ZWAVE_R1_R2"),
    (262, "ZWAVE_R3"),
    (263, "WATTSTOPPER_DLM"),
    (264, "ISO_14443"),
    (265, "RDS"),
    (266, "USB_DARWIN"),
    (268, "SDLC"),
    (270, "LORATAP"),
    (271, "VSOCK"),
    (272, "NORDIC_BLE"),
    (273, "DOCSIS31_XRA31"),
    (274, "ETHERNET_MPACKET"),
    (275, "DISPLAYPORT_AUX"),
    (276, "LINUX_SLL2"),
    (278, "OPENVIZSLA"),
    (279, "EBHSCR"),
    (280, "VPP_DISPATCH"),
    (281, "DSA_TAG_BRCM"),
    (282, "DSA_TAG_BRCM_PREPEND"),
    (283, "IEEE802_15_4_TAP"),
    (284, "DSA_TAG_DSA"),
    (285, "DSA_TAG_EDSA"),
    (286, "ELEE"),
    (287, "Z_WAVE_SERIAL"),
    (288, "USB_2_0"),
    (289, "ATSC_ALP"),
    (290, "ETW"),
];
