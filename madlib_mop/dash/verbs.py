"""The verbs of steering, from a form to the SQL function; called by `app`."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from madlib_mop.catalog.facts.now import read_status
from madlib_mop.dash.accounts import RoleHasLeft
from madlib_mop.dash.commands import NAMES, command_of
from madlib_mop.dash.site import Site, check_token, form_of, run_id_of
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter, MopError, NotReady

_STATUS = {InsufficientPrivilege: 403, InvalidParameter: 422}


class VerbHandlers:
    """The handler of commands."""

    def __init__(self, site: Site):
        self._site = site

    async def command(self, request: Request) -> Response:
        """Issue a command as the role of the session; the server decides whether it may."""
        session, run_id, name = self._site.session_of(request), run_id_of(request), request.path_params["name"]
        form = await form_of(request)
        check_token(form, session)
        if name not in NAMES:
            raise HTTPException(404)
        status = await session.account.read(lambda fetch: read_status(fetch, run_id))
        if status is None:  # defence: commands-to-own-runs
            raise HTTPException(404)
        try:
            result = await session.account.issue(command_of(name, {**form, "run_id": str(run_id)}))
        except RoleHasLeft:
            raise
        except NotReady as error:
            return _refused(error, 409)
        except MopError as error:
            return _refused(error, _STATUS.get(type(error), 409))
        return JSONResponse({"message": _message(name, form.get("mst_key", ""), result, status.has_ended, run_id)})


def _refused(error: MopError, status: int) -> JSONResponse:
    return JSONResponse({"error": error.message, "hint": error.hint}, status)


def _message(name: str, key: str, result: object, has_ended: bool, run_id: int) -> str:
    done = {
        "stop_model": f"Model {key} is stopped.",
        "resume_model": f"Model {key} continues.",
        "clone_model": f"Model {result} is the copy of model {key}.",
        "extend": f"Model {key} makes more iterations." if key else "All models make more iterations.",
        "pause": "The run is paused.",
        "unpause": "The run continues.",
        "pin_model": f"Model {key} is changed.",
        "cancel": "The run is stopping." if result else "The run was not running.",
    }[name]
    if has_ended and name in ("resume_model", "clone_model", "extend"):
        done += f" SELECT madlib_mop.resume({run_id}) trains what was asked for."
    return done
