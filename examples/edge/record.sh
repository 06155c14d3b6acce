#!/usr/bin/env bash
# Records edge.pcap: real programs talk across a router made of network namespaces.
#
#   usage: record.sh [OUTPUT]      (default: edge.pcap beside this script; needs root)
#
# Nothing leaves the three namespaces, and the host's own network is not changed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output=${1:-$here/edge.pcap}

# The headers are the point of the recording, so the rest of a packet is cut off.
snap_length=256

# --- What the script needs ------------------------------------------------------------------------------

# Daemons live in sbin, which is not in every PATH.
PATH=$PATH:/usr/sbin:/sbin

declare -A package=(
  [ip]=iproute2 [ss]=iproute2 [sysctl]=procps [ethtool]=ethtool [tcpdump]=tcpdump
  [nginx]=nginx-light [dnsmasq]=dnsmasq-base [sshd]=openssh-server [iperf3]=iperf3
  [curl]=curl [dig]=bind9-dnsutils [nc]=netcat-openbsd [ping]=iputils-ping
  [ssh]=openssh-client [sftp]=openssh-client [scp]=openssh-client [ssh-keygen]=openssh-client
)
missing=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
if ((${#missing[@]})); then
  echo "record.sh: programs are missing; on Debian they come with:" >&2
  printf '%s\n' "${missing[@]}" | sort -u | xargs echo "  apt-get install --no-install-recommends" >&2
  exit 1
fi
if ((EUID != 0)); then
  echo "record.sh: network namespaces need root" >&2
  exit 1
fi

# --- Cleaning up ----------------------------------------------------------------------------------------

state=$(mktemp -d)
# Only the namespaces of this run are removed, never those of another one.
namespaces=()

cleanup() {
  local status=$? name pids
  trap - EXIT INT TERM
  for name in "${namespaces[@]}"; do
    pids=$(ip netns pids "$name" 2>/dev/null) || true
    # shellcheck disable=SC2086  # one word per process
    [[ -z $pids ]] || kill $pids 2>/dev/null || true
  done
  wait || true
  for name in "${namespaces[@]}"; do
    ip netns del "$name" 2>/dev/null || true
  done
  if ((status != 0 && status < 128)); then
    # Say why a server did not come up before its log is gone.
    tail -n 5 "$state"/log/* >&2 2>/dev/null || true
    echo "record.sh: stopped with status $status" >&2
  fi
  rm -rf "$state"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The web server's and the ssh user's files are read without root's rights.
chmod 711 "$state"
mkdir "$state"/{etc,www,ssh,log,root,home,files}

# --- Addresses ------------------------------------------------------------------------------------------

# Half of the client network belongs to the staff, half to guests. One host plays both.
staff4=192.0.2.10 staff6=2001:db8:1:1::10
guest4=192.0.2.200 guest6=2001:db8:1:2::200
edge4=192.0.2.1 edge6=2001:db8:1:1::1
server4=198.51.100.10 server6=2001:db8:2::10
# Nobody lives here: the edge answers that these are unreachable.
nowhere4=203.0.113.5 nowhere6=2001:db8:3::5

# --- Namespaces and links -------------------------------------------------------------------------------

for name in plx-client plx-edge plx-server; do
  if ! ip netns add "$name"; then
    echo "record.sh: if no other recording runs, remove it: ip netns del $name" >&2
    exit 1
  fi
  namespaces+=("$name")
  # A host without IPv6 hands that down to new namespaces.
  ip netns exec "$name" sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0
  ip -n "$name" link set lo up
done

# Both ends are created inside their namespaces, so that no interface shows up on the host.
ip link add name lan netns plx-client type veth peer name lan netns plx-edge
ip link add name wan netns plx-server type veth peer name wan netns plx-edge

# Without offloads the frames look as on a cable: no merged segments, and checksums filled in.
for end in plx-client:lan plx-edge:lan plx-edge:wan plx-server:wan; do
  ip netns exec "${end%:*}" ethtool -K "${end#*:}" tx off tso off gso off gro off >/dev/null
done

# The way to the servers is a little narrower, as behind a tunnel; large packets then get real ICMP errors.
ip -n plx-edge link set wan mtu 1400
ip -n plx-server link set wan mtu 1400

ip netns exec plx-edge sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1

ip -n plx-edge link set lan up
ip -n plx-edge link set wan up

# tcpdump starts before the client comes up: the first neighbour discovery belongs to the picture.
ip netns exec plx-edge tcpdump -i lan -n -s "$snap_length" -B 8192 --immediate-mode -Z root \
  -w "$state/edge.pcap" 2>"$state/log/tcpdump" &
tcpdump_pid=$!

# Waits until a command succeeds, for ten seconds at most.
wait_for() {
  local tries
  for ((tries = 0; tries < 100; tries++)); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  echo "record.sh: waited in vain for: $*" >&2
  return 1
}
wait_for grep -q 'listening on' "$state/log/tcpdump"

ip -n plx-client link set lan up
ip -n plx-server link set wan up

ip -n plx-edge addr add $edge4/24 dev lan
ip -n plx-edge addr add $edge6/64 dev lan
ip -n plx-edge addr add 2001:db8:1:2::1/64 dev lan
ip -n plx-edge addr add 198.51.100.1/24 dev wan
ip -n plx-edge addr add 2001:db8:2::1/64 dev wan
ip -n plx-edge route add unreachable 203.0.113.0/24
ip -n plx-edge route add unreachable 2001:db8:3::/64

ip -n plx-client addr add $staff4/24 dev lan
ip -n plx-client addr add $guest4/24 dev lan
ip -n plx-client addr add $staff6/64 dev lan
ip -n plx-client addr add $guest6/64 dev lan

ip -n plx-server addr add $server4/24 dev wan
ip -n plx-server addr add $server6/64 dev wan

# An IPv6 address is not used before the check for a duplicate is through.
settled() {
  local name
  for name in "${namespaces[@]}"; do
    [[ -z $(ip -n "$name" -6 addr show tentative) ]] || return 1
  done
}
wait_for settled

# `src` makes the staff address the one for programs that do not choose.
ip -n plx-client route add default via $edge4 src $staff4
ip -n plx-client route add default via $edge6 src $staff6
ip -n plx-server route add default via 198.51.100.1
ip -n plx-server route add default via 2001:db8:2::1

# --- Running programs inside ----------------------------------------------------------------------------

echo "nameserver $server4" >"$state/etc/resolv.conf"
echo "hosts: dns" >"$state/etc/nsswitch.conf"
# Accounts for the servers and the ssh user, so that none of the host is needed or could be reached.
cat >"$state/etc/passwd" <<END
root:x:0:0:root:$state/root:/bin/sh
sshd:x:65532:65534::/run/sshd:/usr/sbin/nologin
plx:x:65533:65534::$state/home:/bin/sh
nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin
END
printf '%s:*:19000:0:99999:7:::\n' root sshd plx nobody >"$state/etc/shadow"
chmod 600 "$state/etc/shadow"
chown 65533:65534 "$state/home"

# `ip netns exec` gives every program mounts of its own. They hide the host's resolver, its accounts and
# /run, where sshd wants a folder and where daemons of the host have their sockets.
# shellcheck disable=SC2016  # expanded by the inner shell
in_namespace='
  for file in resolv.conf nsswitch.conf passwd shadow; do
    mount --bind "$0/etc/$file" "/etc/$file"
  done
  mount -t tmpfs tmpfs /run
  mkdir -m 755 /run/sshd
  exec "$@"'
inside() {
  local name=$1
  shift
  ip netns exec "$name" sh -euc "$in_namespace" "$state" "$@"
}
server() { inside plx-server "$@"; }
client() { inside plx-client "$@"; }

# For what is meant to fail: a closed port, a name that does not exist.
refused() { client "$@" >/dev/null 2>&1 || true; }

# --- Servers --------------------------------------------------------------------------------------------

echo 'A small page of the Packetloom example.' >"$state/www/index.html"
head -c 8000 /dev/urandom >"$state/www/news.bin"
head -c 60000 /dev/urandom >"$state/www/picture.bin"
head -c 250000 /dev/urandom >"$state/www/archive.bin"
chmod -R a+rX "$state/www"

cat >"$state/etc/nginx.conf" <<END
daemon off;
user nobody nogroup;
worker_processes 1;
pid $state/nginx.pid;
error_log $state/log/nginx;
events {}
http {
  access_log off;
  client_body_temp_path $state/nginx-body;
  proxy_temp_path $state/nginx-proxy;
  fastcgi_temp_path $state/nginx-fastcgi;
  uwsgi_temp_path $state/nginx-uwsgi;
  scgi_temp_path $state/nginx-scgi;
  server {
    listen 80;
    listen [::]:80;
    root $state/www;
  }
}
END
server nginx -e "$state/log/nginx" -c "$state/etc/nginx.conf" >/dev/null &

# `long.edge.example` has an answer that does not fit into one packet.
{
  cat <<END
no-resolv
no-hosts
local=/edge.example/
edns-packet-max=4096
host-record=www.edge.example,$server4,$server6
host-record=files.edge.example,$server4,$server6
host-record=gateway.edge.example,$edge4,$edge6
cname=web.edge.example,www.edge.example
mx-host=edge.example,www.edge.example,10
txt-record=edge.example,"only an example"
END
  for number in {1..8}; do
    printf 'txt-record=long.edge.example,"%0250d"\n' "$number"
  done
} >"$state/etc/dnsmasq.conf"
server dnsmasq --keep-in-foreground --conf-file="$state/etc/dnsmasq.conf" --user=nobody --group=nogroup --pid-file= \
  --log-facility="$state/log/dnsmasq" &

ssh-keygen -q -t ed25519 -N '' -C host -f "$state/ssh/host"
ssh-keygen -q -t ed25519 -N '' -C user -f "$state/ssh/user"
chmod 711 "$state/ssh"
cat >"$state/etc/sshd.conf" <<END
Port 22
HostKey $state/ssh/host
AuthorizedKeysFile $state/ssh/user.pub
AllowUsers plx
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile none
StrictModes no
Subsystem sftp internal-sftp
END
server "$(command -v sshd)" -D -f "$state/etc/sshd.conf" -E "$state/log/sshd" &

server iperf3 -s >"$state/log/iperf3" 2>&1 &

listening() {
  local port
  for port in 22 53 80 5201; do
    [[ -n $(ip netns exec plx-server ss -Hltn "sport = :$port") ]] || return 1
  done
}
wait_for listening

# --- Clients --------------------------------------------------------------------------------------------

# No program reads the settings of whoever runs the script.
get() { client curl -q -sS --noproxy '*' --max-time 10 "$@" -o /dev/null; }
ask() { client dig -r +time=1 +tries=1 "$@" >/dev/null; }
ssh_options=(
  -F none -q -i "$state/ssh/user" -o IdentitiesOnly=yes -o IdentityAgent=none -o BatchMode=yes
  -o StrictHostKeyChecking=no -o UserKnownHostsFile="$state/ssh/known" -o ConnectTimeout=5
)
measure() { client iperf3 -c "$@" >/dev/null; }

web() {
  local family=$1 from=$2
  get "-$family" --interface "$from" http://www.edge.example/
  # The second page comes over the connection of the first.
  get "-$family" --interface "$from" http://www.edge.example/ -o /dev/null http://www.edge.example/news.bin
  get "-$family" --interface "$from" http://web.edge.example/picture.bin
  # nginx answers 404, which is no failure for curl.
  get "-$family" --interface "$from" http://www.edge.example/no-such-page
}

names() {
  local from=$1 resolver=$2
  ask -b "$from" "@$resolver" www.edge.example A
  ask -b "$from" "@$resolver" www.edge.example AAAA
  ask -b "$from" "@$resolver" edge.example MX
  ask -b "$from" "@$resolver" missing.edge.example A
  ask -b "$from" "@$resolver" +tcp files.edge.example A
  # Too long for 1232 bytes: dig is told to come back over TCP. With 4096 the answer comes in fragments.
  ask -b "$from" "@$resolver" +bufsize=1232 long.edge.example TXT
  ask -b "$from" "@$resolver" +bufsize=4096 long.edge.example TXT
}

transfers() {
  local from=$1 host=$2 round=$3
  head -c 20000 /dev/urandom >"$state/files/report"
  client sftp "${ssh_options[@]}" -B 4096 -o BindAddress="$from" -b - "plx@$host" >/dev/null <<END
put $state/files/report report-$round
get report-$round $state/files/back
ls -l
END
  cmp "$state/files/report" "$state/files/back"
  client scp "${ssh_options[@]}" -o BindAddress="$from" "$state/files/report" "plx@$host:copy-$round"
}

echo "recording for about a minute" >&2

# Monitoring: two pings that go on beside everything else.
client ping -q -n -i 1 -c 40 "$server4" >/dev/null &
monitor4=$!
client ping -q -n -i 1 -c 40 "$server6" >/dev/null &
monitor6=$!

for round in 1 2 3; do
  web 4 $staff4
  names $staff4 $server4
  web 6 $staff6
  names $staff6 $server6
  web 4 $guest4
  names $guest4 $server4
  web 6 $guest6
  transfers $staff4 $server4 "$round"
  transfers $staff6 "[$server6]" "$round"
  client ssh "${ssh_options[@]}" -b $staff4 "plx@$server4" 'uptime; ls -l' >/dev/null
  sleep 3
done

# One large page for each family.
get -4 http://www.edge.example/archive.bin
get -6 http://www.edge.example/archive.bin

# TCP and UDP, both ways. The rate is set so low that nothing is lost on a slow machine.
measure $server4 -B $staff4 -n 200K
measure $server6 -B $staff6 -n 100K -R
measure $server4 -B $staff4 -u -b 2M -n 150K
measure $server6 -B $staff6 -u -b 2M -n 100K -R

# Large packets: fragments, and a "too big" from the edge where they must not be cut.
client ping -q -n -c 5 -i 0.3 -s 3000 $server4 >/dev/null
client ping -q -n -c 5 -i 0.3 -s 3000 $server6 >/dev/null
client ping -q -n -c 2 -s 3000 $edge4 >/dev/null
refused ping -q -n -c 3 -i 0.3 -W 1 -M "do" -s 1450 $server4
refused ping -q -n -c 3 -i 0.3 -W 1 -M "do" -s 1440 -I $guest6 $server6

# Errors: the hop limit runs out at the edge, and a network where nobody lives.
refused ping -q -n -c 2 -t 1 -W 1 $server4
refused ping -q -n -c 2 -t 1 -W 1 $server6
refused ping -q -n -c 2 -W 1 $nowhere4
refused ping -q -n -c 2 -W 1 $nowhere6
refused curl -q -s --noproxy '*' --max-time 3 "http://$nowhere4/"
# A resolver where none listens; the host answers that the port is unreachable.
refused dig -r +time=1 +tries=2 -p 5353 "@$server4" www.edge.example A

# What an edge should not let through.
for from in $staff4 $guest4; do
  refused nc -n -w 1 -s "$from" $server4 23 </dev/null
  refused nc -n -w 1 -s "$from" $server4 3306 </dev/null
  refused nc -n -w 1 -s "$from" $server4 5432 </dev/null
done
for from in $staff6 $guest6; do
  refused nc -n -w 1 -s "$from" $server6 23 </dev/null
  refused nc -n -w 1 -s "$from" $server6 5432 </dev/null
done
# Guests at the ssh server. It would let them in, so the edge has to refuse.
client ssh "${ssh_options[@]}" -b $guest4 "plx@$server4" true
client ssh "${ssh_options[@]}" -b $guest6 "plx@$server6" true
# Probes: a range of ports at the server, and the edge itself.
refused nc -n -z -w 1 -s $guest4 $server4 15-64
refused nc -n -z -w 1 -s $guest6 $server6 75-104
refused nc -n -z -w 1 -s $guest4 $edge4 20-30
refused nc -n -z -u -w 1 -s $guest4 $server4 160-165

wait "$monitor4" "$monitor6"

# tcpdump writes its last packets when it is asked to stop.
kill "$tcpdump_pid"
wait "$tcpdump_pid" || true
if ! grep -q '^0 packets dropped by kernel' "$state/log/tcpdump"; then
  echo "record.sh: the kernel dropped packets; record again on a machine with less load" >&2
  exit 1
fi
cp "$state/edge.pcap" "$output"
grep 'packets captured' "$state/log/tcpdump" >&2
echo "written: $output" >&2
