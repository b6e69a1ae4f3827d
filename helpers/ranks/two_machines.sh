# The first of two machines, called in a network and a process namespace of its own as: sh -c "$program" "$program" first
# COMMAND... with rate, burst, limit (of the cable) and first, second (the machines' names) set before. It calls the
# second. 97 means that the cable could not be laid.
role=$1; shift
plug_in() {
    hostname $1 && ip link set lo up && ip address add $1/24 dev cable &&
    tc qdisc add dev cable root tbf rate ${rate}bit burst $burst limit $limit && ip link set cable up
}
is_joined() { ip link show cable | grep -q LOWER_UP; }
export GLOO_SOCKET_IFNAME=cable NCCL_SOCKET_IFNAME=cable

if [ $role = second ]; then
    # It lays the cable, for it knows the first: process 1 of their process namespace. It stays until the first has
    # ended, so that no last packet is lost.
    ip link add name cable type veth peer name cable netns 1 && plug_in $second || exit 97
    until is_joined; do sleep 0.02; done
    sleep 86400 &
    exec "$@"
fi

unshare --net --uts sh -c "$0" "$0" second "$@" &
other=$!
until ip link show cable >/dev/null 2>&1; do kill -0 $other 2>/dev/null || exit 97; sleep 0.02; done
plug_in $first || exit 97
code=
until is_joined; do  # the second may see it first, and have ended by now
    if [ -z "$code" ] && ! kill -0 $other 2>/dev/null; then wait $other; code=$?; fi
    [ "$code" != 97 ] || exit 97
    sleep 0.02
done
"$@"; ended=$?
[ -n "$code" ] || { wait $other; code=$?; }
[ "$code" = 0 ] || exit $code
exit $ended
