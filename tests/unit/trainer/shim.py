"""Stands in for madlib_mop.models while it is being written."""
import dataclasses, json, sys, types


def install():
    models = types.ModuleType("x")
    arch = types.ModuleType("madlib_mop.models.architecture")
    arch.check_architecture = lambda a: json.loads(a) if isinstance(a, str) else a
    params = types.ModuleType("madlib_mop.models.params")

    @dataclasses.dataclass(frozen=True)
    class CompileParams:
        text: str

    @dataclasses.dataclass(frozen=True)
    class FitParams:
        batch_size: int = 32
        epochs: int = 1
        initial_epoch: int = 0
        shuffle: bool = True
        class_weight: object = None
        verbose: int = 0
        steps_per_epoch: object = None
        callbacks: tuple = ()
        text: str = ""

    params.CompileParams, params.FitParams = CompileParams, FitParams
    params.parse_compile_params = CompileParams

    def parse_fit(text):
        d = json.loads(text)
        if d.get("class_weight"):
            d["class_weight"] = {int(k): v for k, v in d["class_weight"].items()}
        return FitParams(**d, text=text)

    params.parse_fit_params = parse_fit
    build = types.ModuleType("madlib_mop.models.build")

    def build_model(config, cp):
        import keras

        m = keras.saving.deserialize_keras_object(config)
        d = json.loads(cp.text)
        opt = keras.saving.deserialize_keras_object(d.pop("optimizer"))
        m.compile(optimizer=opt, **d)
        return m

    def compile_signature(config, cp):
        d = json.loads(cp.text)
        if isinstance(d["optimizer"]["config"]["learning_rate"], float):
            d["optimizer"]["config"]["learning_rate"] = 0
        return json.dumps([config, d], sort_keys=True)

    build.build_model, build.compile_signature = build_model, compile_signature
    import madlib_mop.models as pkg

    for name, mod in ("architecture", arch), ("params", params), ("build", build):
        sys.modules[f"madlib_mop.models.{name}"] = mod
        setattr(pkg, name, mod)
