"""The chart's certificates from cert-manager."""

from __future__ import annotations

from tests.support.chart import objects, render

# Fields that the chart uses, with their types. Source: cert-manager, API cert-manager.io/v1 (Certificate, Issuer).
_ISSUER_REF = {"name": str, "kind": str, "group": str}


_CERTIFICATE = {
    "secretName": str,
    "issuerRef": dict,
    "dnsNames": list,
    "usages": list,
    "isCA": bool,
    "commonName": str,
    "duration": str,
    "privateKey": dict,
}


_USAGES = {"digital signature", "server auth", "cert sign"}


def certificates(text: str) -> dict[tuple[str, str], dict]:
    """Return the specs of cert-manager's objects by kind and name, after checks of their fields."""
    found = {}
    for one in objects(text):
        if one["apiVersion"] == "cert-manager.io/v1":
            spec, name = one["spec"], one["metadata"]["name"]
            assert one["metadata"]["namespace"] == "dra-driver"
            assert len(name) <= 253
            if one["kind"] == "Certificate":
                assert {"secretName", "issuerRef"} <= spec.keys() <= _CERTIFICATE.keys()
                assert all(isinstance(value, _CERTIFICATE[key]) for key, value in spec.items())
                assert {"name"} <= spec["issuerRef"].keys() <= _ISSUER_REF.keys()
                assert set(spec["usages"]) <= _USAGES
                assert len(spec.get("commonName", "")) <= 64
                assert spec.get("dnsNames") or spec.get("commonName")
            else:
                assert one["kind"] == "Issuer"
                assert spec == {"selfSigned": {}} or spec.keys() == {"ca"}
            found[one["kind"], name] = spec
    return found


def test_cert_manager_makes_a_certificate_that_is_signed_by_an_authority_of_its_own(helm: str) -> None:
    text = render(helm, "webhook.enabled=true", "webhook.certManager.enabled=true")
    found, name = certificates(text), "dra-driver-webhook"
    leaf, root = found["Certificate", name], found["Certificate", f"{name}-root"]
    assert leaf["dnsNames"] == [f"{name}.dra-driver.svc", f"{name}.dra-driver.svc.cluster.local"]
    assert found["Issuer", leaf["issuerRef"]["name"]] == {"ca": {"secretName": root["secretName"]}}
    assert (root["isCA"], found["Issuer", root["issuerRef"]["name"]]) == (True, {"selfSigned": {}})
    by_kind = {one["kind"]: one for one in objects(text)}
    annotations = by_kind["ValidatingWebhookConfiguration"]["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"dra-driver/{name}"}
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    [volume] = pod["volumes"]
    assert volume["secret"]["secretName"] == leaf["secretName"]
    [container] = pod["containers"]
    [mount] = container["volumeMounts"]
    assert {"name": "TLS_DIR", "value": mount["mountPath"]} in container["env"]
    # The webhook has no right to write anything, and no Secret of its own.
    assert "Secret" not in by_kind
    (role,) = (one for one in objects(text) if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name)
    assert [rule["verbs"] for rule in role["rules"]] == [["list", "watch"], ["get"]]


def test_with_a_given_issuer_only_the_certificate_is_made(helm: str) -> None:
    options = ["webhook.enabled=true", "webhook.certManager.enabled=true"]
    options += ["webhook.certManager.issuerRef.name=corporate", "webhook.certManager.issuerRef.kind=ClusterIssuer"]
    found = certificates(render(helm, *options))
    assert found.keys() == {("Certificate", "dra-driver-webhook")}
    [spec] = found.values()
    assert spec["issuerRef"] == {"name": "corporate", "kind": "ClusterIssuer"}
