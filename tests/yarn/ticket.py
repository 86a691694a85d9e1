"""``kinit`` without MIT's programs: ``python -m tests.yarn.ticket KEYTAB PRINCIPAL CACHE [--expired]``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from eps.hadoop.bridge import java, jbool, jint, jlong, start_jvm


def main() -> int:
    """Get a ticket from the realm of KRB5_CONFIG and write it to a cache; an expired one on request."""
    keytab, principal, cache, *flags = sys.argv[1:]
    start_jvm()
    found = re.search(r"kdc = ([\d.]+):(\d+)", Path(os.environ["KRB5_CONFIG"]).read_text(encoding="ascii"))
    assert found is not None
    client = java("org.apache.kerby.kerberos.kerb.client.KrbClient")()
    client.setKdcHost(found[1])
    client.setKdcTcpPort(jint(int(found[2])))
    client.setAllowUdp(jbool(False))
    client.setKdcRealm(principal.partition("@")[2])
    client.init()
    file = java("java.io.File")
    ticket = client.requestTgt(principal, file(keytab))
    if "--expired" in flags:
        part = ticket.getEncKdcRepPart()
        before = java("org.apache.kerby.kerberos.kerb.type.KerberosTime")(jlong(part.getEndTime().getTime() - 10**9))
        part.setEndTime(before)
        part.setRenewTill(before)
    Path(cache).unlink(missing_ok=True)
    client.storeTicket(ticket, file(cache))
    return 0


if __name__ == "__main__":
    # Java's threads do not block the exit.
    code = main()
    sys.stdout.flush()
    os._exit(code)
